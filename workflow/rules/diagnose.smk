# Diagnostics: what an update can and cannot do, without training a model of the study.
#
# Inputs:  the options of each (section `diagnostics` of the configuration, defaults in mpadam.study.diagnostics), as
#          canonical text, and the source of what they measure
# Outputs: Table 1 and Figures 1 to 3, 5 and 7 to 9 beside the tables and figures of `all_paper`, and the numbers behind
#          them in diagnostics/
# Steps:   each is one job of at most a minute or two on one CPU thread; none needs another

PAPER = f"{ROOT}/paper"


rule diagnose_matrix_fitting:
    input:
        code=sources("diagnostics", "numerics", "optim"),
    output:
        figure3=report(
            f"{PAPER}/figures/figure3.svg",
            caption="../report/figure3.rst",
            category="Figures",
            labels={"figure": "Figure 3"},
        ),
        figure5=report(
            f"{PAPER}/figures/figure5.svg",
            caption="../report/figure5.rst",
            category="Figures",
            labels={"figure": "Figure 5"},
        ),
        table=report(
            f"{PAPER}/tables/matrix-fitting.csv",
            caption="../report/matrix-fitting.rst",
            category="Tables",
            labels={"table": "matrix fitting"},
        ),
        other=multiext(f"{PAPER}/figures/figure3", ".pdf", ".png", ".json")
        + multiext(f"{PAPER}/figures/figure5", ".pdf", ".png", ".json")
        + multiext(f"{PAPER}/tables/matrix-fitting", ".md", ".tex", ".txt", ".json")
        + multiext(
            f"{PAPER}/diagnostics/matrix-fitting/",
            "results.json",
            "curves.csv",
            "sweeps.csv",
        ),
    log:
        f"{LOGS}/diagnose/matrix-fitting.log",
    benchmark:
        f"{LOGS}/diagnose/matrix-fitting.benchmark.tsv"
    threads: 1
    resources:
        **STUDY.site_resources(),
        mem_mb=2000,
        runtime=30,
    params:
        options=STUDY.config.diagnostics.text("matrix-fitting"),
        out=PAPER,
    shell:
        "mpadam diagnose matrix-fitting --options {params.options:q} --out {params.out:q} > {log:q} 2>&1"


rule diagnose_capabilities:
    input:
        code=sources("diagnostics", "numerics", "optim"),
    output:
        table1=report(
            f"{PAPER}/tables/table1.csv",
            caption="../report/table1.rst",
            category="Tables",
            labels={"table": "Table 1"},
        ),
        write_backs=report(
            f"{PAPER}/tables/table1-write-backs.csv",
            caption="../report/table1-write-backs.rst",
            category="Tables",
            labels={"table": "Table 1, every write-back"},
        ),
        other=multiext(f"{PAPER}/tables/table1", ".md", ".tex", ".txt", ".json")
        + multiext(
            f"{PAPER}/tables/table1-write-backs", ".md", ".tex", ".txt", ".json"
        )
        + multiext(
            f"{PAPER}/diagnostics/capabilities/", "results.json", "capabilities.csv"
        ),
    log:
        f"{LOGS}/diagnose/capabilities.log",
    benchmark:
        f"{LOGS}/diagnose/capabilities.benchmark.tsv"
    threads: 1
    resources:
        **STUDY.site_resources(),
        mem_mb=2000,
        runtime=30,
    params:
        options=STUDY.config.diagnostics.text("capabilities"),
        out=PAPER,
    shell:
        "mpadam diagnose capabilities --options {params.options:q} --out {params.out:q} > {log:q} 2>&1"


rule diagnose_survival_grid:
    input:
        code=sources("diagnostics", "numerics", "optim"),
    output:
        figure1=report(
            f"{PAPER}/figures/figure1.svg",
            caption="../report/figure1.rst",
            category="Figures",
            labels={"figure": "Figure 1"},
        ),
        other=multiext(f"{PAPER}/figures/figure1", ".pdf", ".png", ".json"),
        numbers=f"{PAPER}/diagnostics/survival-grid/survival.csv",
    log:
        f"{LOGS}/diagnose/survival-grid.log",
    threads: 1
    resources:
        **STUDY.site_resources(),
        mem_mb=2000,
        runtime=30,
    params:
        options=STUDY.config.diagnostics.text("survival-grid"),
        out=PAPER,
    shell:
        "mpadam diagnose survival-grid --options {params.options:q} --out {params.out:q} > {log:q} 2>&1"


rule diagnose_overview:
    input:
        code=sources("diagnostics"),
    output:
        figure2=report(
            f"{PAPER}/figures/figure2.svg",
            caption="../report/figure2.rst",
            category="Figures",
            labels={"figure": "Figure 2"},
        ),
        other=multiext(f"{PAPER}/figures/figure2", ".pdf", ".png", ".json"),
    log:
        f"{LOGS}/diagnose/overview.log",
    threads: 1
    resources:
        **STUDY.site_resources(),
        mem_mb=1000,
        runtime=30,
    params:
        options=STUDY.config.diagnostics.text("overview"),
        out=PAPER,
    shell:
        "mpadam diagnose overview --options {params.options:q} --out {params.out:q} > {log:q} 2>&1"


rule diagnose_dataflow:
    input:
        code=sources("diagnostics", "model", "numerics", "optim", "training"),
    output:
        figures=report(
            expand(
                f"{PAPER}/figures/{{figure}}.svg",
                figure=STUDY.config.diagnostics.dataflow.figures,
            ),
            caption="../report/dataflow.rst",
            category="Figures",
            labels={"figure": "Figures 7 to 9"},
        ),
        other=expand(
            f"{PAPER}/figures/{{figure}}{{suffix}}",
            figure=STUDY.config.diagnostics.dataflow.figures,
            suffix=(".pdf", ".png", ".json"),
        ),
        traces=expand(
            f"{PAPER}/diagnostics/dataflow/{{figure}}.json",
            figure=STUDY.config.diagnostics.dataflow.figures,
        ),
    log:
        f"{LOGS}/diagnose/dataflow.log",
    threads: 1
    resources:
        **STUDY.site_resources(),
        mem_mb=2000,
        runtime=30,
    params:
        options=STUDY.config.diagnostics.text("dataflow"),
        out=PAPER,
    shell:
        "mpadam diagnose dataflow --options {params.options:q} --out {params.out:q} > {log:q} 2>&1"


# What the page of `all_paper` shows beside what the runs give.
PAPER_PIECES = [
    *rules.diagnose_matrix_fitting.output,
    *rules.diagnose_capabilities.output,
    *rules.diagnose_survival_grid.output,
    *rules.diagnose_dataflow.output,
    *rules.diagnose_overview.output,
]
