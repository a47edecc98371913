# A verdict on every claim.
#
# Inputs:  what the tables are made of; of `all_paper` also the diagnostics and the probes of updates along training. The
#          claims themselves are part of the source: an edit to one remakes the verdicts, and no run
# Outputs: results/<study>/claims.json, which the table and the forest plot `claims` are made of
# Steps:   one local job, seconds


rule claims:
    input:
        study=f"{ROOT}/{{view}}study.yaml",
        manifest=f"{ROOT}/data/manifest.json",
        summaries=STUDY.summaries_of_view,
        selections=STUDY.selections_of_view,
        probes=STUDY.for_paper(rules.probes.output.table if EXHIBITS.together() else []),
        diagnostics=STUDY.for_paper(
            expand(f"{PAPER}/diagnostics/{{kind}}", kind=DIAGNOSTICS)
        ),
    output:
        verdicts=f"{ROOT}/{{view}}claims.json",
    log:
        f"{LOGS}/{{view}}claims.log",
    params:
        code=code_of("mpadam.claims.examine"),
        view=STUDY.view_name,
    shell:
        "mpadam claims --config {input.study:q} --view={params.view:q} --records-only > {log:q} 2>&1"
