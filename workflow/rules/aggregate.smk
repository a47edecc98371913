# From runs to tables and figures.
#
# Inputs:  summary.json of every run, the selected values of every tuning, the resolved configuration, and the source
#          of the analysis, so that an edit to it remakes tables and figures and nothing else
# Outputs: results/<study>/{tables,figures} of what `all` runs; of `all_paper` the same and more in results/<study>/paper
# Steps:   refuse summaries whose hash does not match; show missing and diverged runs as what they are


rule study:
    output:
        f"{ROOT}/{{view}}study.yaml",
    log:
        f"{LOGS}/{{view}}study.log",
    params:
        content=STUDY.study_text,
    shell:
        "mpadam study --content {params.content:q} --out {output:q} > {log:q} 2>&1"


rule aggregate:
    input:
        study=f"{ROOT}/{{view}}study.yaml",
        manifest=f"{ROOT}/data/manifest.json",
        summaries=STUDY.summaries_of_view,
        selections=STUDY.selections_of_view,
        code=sources("analysis"),
        again=nothing_unless_refused(f"{ROOT}/tables/runs.csv"),
    output:
        runs=report(
            f"{ROOT}/{{view}}tables/runs.csv",
            caption="../report/runs.rst",
            category="Tables",
            labels={"table": "all runs"},
        ),
        table2=report(
            f"{ROOT}/{{view}}tables/table2.csv",
            caption="../report/table2.rst",
            category="Tables",
            labels={"table": "Table 2"},
        ),
        hyperparameters=report(
            f"{ROOT}/{{view}}tables/hyperparameters.csv",
            caption="../report/hyperparameters.rst",
            category="Tables",
            labels={"table": "chosen hyper-parameters"},
        ),
        figure4=report(
            f"{ROOT}/{{view}}figures/figure4.svg",
            caption="../report/figure4.rst",
            category="Figures",
            labels={"figure": "Figure 4"},
        ),
        other=multiext(f"{ROOT}/{{view}}tables/table2", ".md", ".tex", ".txt", ".json")
        + multiext(
            f"{ROOT}/{{view}}tables/hyperparameters", ".md", ".tex", ".txt", ".json"
        )
        + multiext(f"{ROOT}/{{view}}figures/figure4", ".pdf", ".png", ".json", ".csv"),
    log:
        f"{LOGS}/{{view}}aggregate.log",
    wildcard_constraints:
        view="()",  # the empty one
    shell:
        "mpadam aggregate --config {input.study:q} > {log:q} 2>&1"


rule aggregate_paper:
    input:
        study=f"{ROOT}/paper/study.yaml",
        manifest=f"{ROOT}/data/manifest.json",
        summaries=STUDY.view("paper").summaries(),
        selections=STUDY.view("paper").selections(),
        code=sources("analysis"),
        again=nothing_unless_refused(f"{ROOT}/paper/tables/runs.csv"),
    output:
        runs=report(
            f"{ROOT}/paper/tables/runs.csv",
            caption="../report/runs.rst",
            category="Tables",
            labels={"table": "all runs"},
        ),
        table2=report(
            f"{ROOT}/paper/tables/table2.csv",
            caption="../report/table2.rst",
            category="Tables",
            labels={"table": "Table 2"},
        ),
        write_backs=report(
            f"{ROOT}/paper/tables/write-backs.csv",
            caption="../report/write-backs.rst",
            category="Tables",
            labels={"table": "stochastic rounding and Kahan"},
        ),
        ablations=report(
            f"{ROOT}/paper/tables/ablations.csv",
            caption="../report/ablations.rst",
            category="Tables",
            labels={"table": "ablations"},
        ),
        hyperparameters=report(
            f"{ROOT}/paper/tables/hyperparameters.csv",
            caption="../report/hyperparameters.rst",
            category="Tables",
            labels={"table": "chosen hyper-parameters"},
        ),
        figure4=report(
            f"{ROOT}/paper/figures/figure4.svg",
            caption="../report/figure4.rst",
            category="Figures",
            labels={"figure": "Figure 4"},
        ),
        figure4_all=report(
            f"{ROOT}/paper/figures/figure4-all.svg",
            caption="../report/figure4-all.rst",
            category="Figures",
            labels={"figure": "Figure 4, all regimes"},
        ),
        figure6=report(
            f"{ROOT}/paper/figures/figure6.svg",
            caption="../report/figure6.rst",
            category="Figures",
            labels={"figure": "Figure 6"},
        ),
        figure_ablations=report(
            f"{ROOT}/paper/figures/ablations.svg",
            caption="../report/ablations-figure.rst",
            category="Figures",
            labels={"figure": "ablations"},
        ),
        other=expand(
            f"{ROOT}/paper/tables/{{table}}{{suffix}}",
            table=("table2", "write-backs", "ablations", "hyperparameters"),
            suffix=(".md", ".tex", ".txt", ".json"),
        )
        + expand(
            f"{ROOT}/paper/figures/{{figure}}{{suffix}}",
            figure=("figure4", "figure4-all", "figure6", "ablations"),
            suffix=(".pdf", ".png", ".json", ".csv"),
        ),
    log:
        f"{LOGS}/paper/aggregate.log",
    shell:
        "mpadam aggregate --config {input.study:q} --view paper > {log:q} 2>&1"
