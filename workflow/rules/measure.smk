# What optimizers cost, for the appendix of `all_paper`.
#
# Inputs:  the options of each (section `measure` of the configuration, defaults in mpadam.study.measure), as
#          canonical text, and the source of what is measured
# Outputs: every timing and footprint in results/<study>/paper/measure, which the tables of runtime overhead and of
#          memory are made of
# Steps:   each is one job. Optimizers are timed in turn, so that other jobs on the machine slow all of them alike

from mpadam.study.measure import KINDS as MEASUREMENTS


rule measure:
    output:
        f"{PAPER}/measure/{{kind}}.json",
    log:
        f"{LOGS}/measure/{{kind}}.log",
    wildcard_constraints:
        kind="|".join(MEASUREMENTS),
    threads: STUDY.measuring_threads
    resources:
        **STUDY.measuring_resources(),
    params:
        code=code_of("mpadam.measure.produce"),
        options=lambda wildcards: STUDY.config.measure.text(wildcards.kind),
        out=PAPER,
    shell:
        "mpadam measure {wildcards.kind} --options {params.options:q} --out {params.out:q} --records-only"
        " > {log:q} 2>&1"
