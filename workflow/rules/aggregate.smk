# From runs to a table of all of them, which tables and figures are made of.
#
# Inputs:  summary.json of every run, the selected values of every tuning, the resolved configuration, and the source
#          of what reads them, so that an edit to it checks the runs again
# Outputs: results/<study>/tables/runs.csv of what `all` runs; of `all_paper` the same in results/<study>/paper
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
        again=nothing_unless_refused(f"{ROOT}/{{view}}tables/runs.csv"),
    output:
        runs=report(
            f"{ROOT}/{{view}}tables/runs.csv",
            caption="../report/runs.rst",
            category="Tables",
            labels={"table": "all runs"},
        ),
    log:
        f"{LOGS}/{{view}}aggregate.log",
    params:
        code=code_of("mpadam.analysis.collect"),
        view=STUDY.view_name,
    shell:
        "mpadam aggregate --config {input.study:q} --view={params.view:q} --records-only > {log:q} 2>&1"
