# The identity of runs and trials.
#
# Inputs:  the data's manifest; the selected values of the run's tuning
# Outputs: run.yaml in the run's folder, with every field that changes its numbers, and their hash
# Steps:   the configuration's part enters as canonical text, so only a change of meaning asks for the run again


rule spec:
    input:
        manifest=f"{ROOT}/data/manifest.json",
        selected=STUDY.selected_of_run,
    output:
        f"{ROOT}/runs/{RUN}/run.yaml",
    log:
        f"{LOGS}/spec/{RUN}.log",
    params:
        request=STUDY.run_text,
    shell:
        "mpadam spec --request {params.request:q} --manifest {input.manifest:q} --selected {input.selected:q} "
        "--out {output:q} > {log:q} 2>&1"


rule trial_spec:
    input:
        manifest=f"{ROOT}/data/manifest.json",
    output:
        f"{ROOT}/tuning/{TUNING}/trial{{trial}}/run.yaml",
    log:
        f"{LOGS}/spec/tuning/{TUNING}/trial{{trial}}.log",
    params:
        request=STUDY.trial_text,
    shell:
        "mpadam spec --request {params.request:q} --manifest {input.manifest:q} --out {output:q} > {log:q} 2>&1"
