# What optimizers cost, for the appendix of `all_paper`.
#
# Inputs:  the options of each (section `measure` of the configuration, defaults in mpadam.study.measure), as
#          canonical text, and the source of what is measured
# Outputs: every timing and footprint in results/<study>/paper/measure, which the tables of runtime overhead and of
#          memory are made of
# Steps:   each is one job. Optimizers are timed in turn, so that other jobs on the machine slow all of them alike

from mpadam.study.measure import KINDS as MEASUREMENTS

for kind in MEASUREMENTS:

    rule:  # of one text, but what they ask of the machine differs: timing may need a GPU
        name:
            f"measure_{kind.replace('-', '_')}"
        output:
            f"{PAPER}/measure/{kind}.json",
        log:
            f"{LOGS}/measure/{kind}.log",
        threads: STUDY.config.measure.step_time.threads if kind == "step-time" else 1
        resources:
            **STUDY.measuring_resources(kind),
        params:
            code=code_of("mpadam.measure.produce"),
            kind=kind,
            options=STUDY.config.measure.text(kind),
            out=PAPER,
        shell:
            "mpadam measure {params.kind} --options {params.options:q} --out {params.out:q} --records-only"
            " > {log:q} 2>&1"
