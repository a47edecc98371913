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
        manifest=f"{ROOT}/data/manifest.json",
        summaries=STUDY.summaries(),
        selections=STUDY.selections(),
        code=sources("analysis"),
    output:
        runs=report(
            f"{ROOT}/tables/runs.csv",
            caption="../report/runs.rst",
            category="Tables",
            labels={"table": "all runs"},
        ),
        table2=report(
            f"{ROOT}/tables/table2.csv",
            caption="../report/table2.rst",
            category="Tables",
            labels={"table": "Table 2"},
        ),
        hyperparameters=report(
            f"{ROOT}/tables/hyperparameters.csv",
            caption="../report/hyperparameters.rst",
            category="Tables",
            labels={"table": "chosen hyper-parameters"},
        ),
        figure4=report(
            f"{ROOT}/figures/figure4.svg",
            caption="../report/figure4.rst",
            category="Figures",
            labels={"figure": "Figure 4"},
        ),
        other=multiext(f"{ROOT}/tables/table2", ".md", ".tex", ".txt", ".json")
        + multiext(f"{ROOT}/tables/hyperparameters", ".md", ".tex", ".txt", ".json")
        + multiext(f"{ROOT}/figures/figure4", ".pdf", ".png", ".json"),
    log:
        f"{LOGS}/aggregate.log",
    shell:
        "mpadam aggregate --config {input.study:q} > {log:q} 2>&1"
