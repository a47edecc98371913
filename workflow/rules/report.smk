# The results site.
#
# Inputs:  tables and figures, the resolved configuration, the source of the site
# Outputs: results/<study>/index.html, a page to open from disk


rule site:
    input:
        study=f"{ROOT}/study.yaml",
        tables=rules.aggregate.output,
        code=sources("site"),
    output:
        report(
            f"{ROOT}/index.html",
            caption="../report/site.rst",
            category="Page",
            labels={"page": "results"},
        ),
    log:
        f"{LOGS}/site.log",
    shell:
        "mpadam site --config {input.study:q} > {log:q} 2>&1"
