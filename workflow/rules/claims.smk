# A verdict on every claim.
#
# Inputs:  what the tables are made of; of `all_paper` also the diagnostics and the looks at updates along training. The
#          claims themselves are part of the source of the analysis: an edit to one remakes the verdicts, and no run
# Outputs: results/<study>/claims.json, the table and the forest plot `claims` beside the other tables and figures
# Steps:   one local job, seconds


rule claims:
    input:
        study=f"{ROOT}/{{view}}study.yaml",
        manifest=f"{ROOT}/data/manifest.json",
        summaries=STUDY.summaries_of_view,
        selections=STUDY.selections_of_view,
        pieces=STUDY.for_paper(PAPER_PIECES),
        code=sources("analysis"),
    output:
        verdicts=f"{ROOT}/{{view}}claims.json",
        table=report(
            f"{ROOT}/{{view}}tables/claims.csv",
            caption="../report/claims.rst",
            category="Claims",
            labels={"table": "claims, cell by cell"},
        ),
        figure=report(
            f"{ROOT}/{{view}}figures/claims.svg",
            caption="../report/claims-figure.rst",
            category="Claims",
            labels={"figure": "differences and their intervals"},
        ),
        other=multiext(f"{ROOT}/{{view}}tables/claims", ".md", ".tex", ".txt", ".json")
        + multiext(f"{ROOT}/{{view}}figures/claims", ".pdf", ".png", ".json", ".csv"),
    log:
        f"{LOGS}/{{view}}claims.log",
    params:
        view=STUDY.view_name,
    shell:
        "mpadam claims --config {input.study:q} --view={params.view:q} > {log:q} 2>&1"
