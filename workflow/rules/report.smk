# The results site.
#
# Inputs:  tables and figures, the verdicts, the resolved configuration, the source of the site
# Outputs: results/<study>/index.html, a page to open from disk, and pages/, one for each cell


rule site:
    input:
        study=f"{ROOT}/{{view}}study.yaml",
        runs=rules.aggregate.output,
        claims=rules.claims.output,
        exhibits=EXHIBITS.files,
    output:
        pages=directory(f"{ROOT}/{{view}}pages"),
        index=report(
            f"{ROOT}/{{view}}index.html",
            caption="../report/site.rst",
            category="Page",
            labels={"page": "results"},
        ),
    log:
        f"{LOGS}/{{view}}site.log",
    params:
        code=code_of("mpadam.site.write"),
        view=STUDY.view_name,
    shell:
        "mpadam site --config {input.study:q} --view={params.view:q} > {log:q} 2>&1"
