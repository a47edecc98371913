# From runs to tables and figures.
#
# Inputs:  summary.json of every run, the selected values of every tuning, the resolved configuration, and the source
#          of the analysis, so that an edit to it remakes tables and figures and nothing else
# Outputs: results/<study>/{tables,figures}
# Steps:   refuse summaries whose hash does not match; show missing and diverged runs as what they are


rule study:
    output:
        f"{ROOT}/study.yaml",
    log:
        f"{LOGS}/study.log",
    params:
        content=STUDY.study_text(),
    shell:
        "mpadam study --content {params.content:q} --out {output:q} > {log:q} 2>&1"


rule aggregate:
    input:
        study=f"{ROOT}/study.yaml",
        summaries=STUDY.summaries(),
        selections=STUDY.selections(),
        code=sources("analysis"),
    output:
        runs=f"{ROOT}/tables/runs.csv",
    log:
        f"{LOGS}/aggregate.log",
    shell:
        "mpadam aggregate --config {input.study:q} > {log:q} 2>&1"
