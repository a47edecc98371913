# What optimizers cost, for the appendix of `all_paper`.
#
# Inputs:  the options of each (section `measure` of the configuration, defaults in mpadam.study.measure), as
#          canonical text, and the source of what is measured
# Outputs: the tables of runtime overhead and of memory beside the others of `all_paper`, every timing in measure/
# Steps:   each is one job. Optimizers are timed in turn, so that other jobs on the machine slow all of them alike


rule measure_step_time:
    input:
        code=sources("measure", "numerics", "optim"),
    output:
        table=report(
            f"{ROOT}/paper/tables/runtime-overhead.csv",
            caption="../report/runtime-overhead.rst",
            category="Tables",
            labels={"table": "runtime overhead"},
        ),
        other=multiext(
            f"{ROOT}/paper/tables/runtime-overhead", ".md", ".tex", ".txt", ".json"
        ),
        samples=f"{ROOT}/paper/measure/step-time.json",
    log:
        f"{LOGS}/measure/step-time.log",
    threads: STUDY.config.measure.step_time.threads
    resources:
        **STUDY.measuring_resources(),
    params:
        options=STUDY.config.measure.text("step-time"),
        out=f"{ROOT}/paper",
    shell:
        "mpadam measure step-time --options {params.options:q} --out {params.out:q} > {log:q} 2>&1"


rule measure_memory:
    input:
        code=sources("measure", "numerics", "optim"),
    output:
        table=report(
            f"{ROOT}/paper/tables/memory.csv",
            caption="../report/memory.rst",
            category="Tables",
            labels={"table": "memory"},
        ),
        other=multiext(f"{ROOT}/paper/tables/memory", ".md", ".tex", ".txt", ".json"),
    log:
        f"{LOGS}/measure/memory.log",
    threads: 1
    resources:
        **STUDY.site_resources(),
        mem_mb=4000,
        runtime=30,
    params:
        options=STUDY.config.measure.text("memory"),
        out=f"{ROOT}/paper",
    shell:
        "mpadam measure memory --options {params.options:q} --out {params.out:q} > {log:q} 2>&1"


PAPER_PIECES += [
    *rules.measure_step_time.output,
    *rules.measure_memory.output,
    *rules.aggregate_paper.output,
]
