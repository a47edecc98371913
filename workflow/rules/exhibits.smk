# Tables and figures, one job each.
#
# Inputs:  what the exhibit says that it needs (NEEDS in its module of src/mpadam/exhibits): the table of all runs,
#          the verdicts, or the record of a diagnostic or measurement; and the source that it is made with
# Outputs: a table as CSV, Markdown, LaTeX, text and JSON, a figure as SVG, PDF, PNG and its words as JSON, in
#          results/<study>/{tables,figures} for `all` and in results/<study>/paper for `all_paper`
# Steps:   each is seconds on the local machine. Which there are is read from the package: a new module needs no line here


rule table:
    input:
        made_of=EXHIBITS.made_of,
    output:
        report(
            f"{ROOT}/{{view}}tables/{{table}}.csv",
            caption="../report/exhibit.rst",
            category="Tables",
            labels=EXHIBITS.labels,
        ),
        multiext(f"{ROOT}/{{view}}tables/{{table}}", ".md", ".tex", ".txt", ".json"),
    log:
        f"{LOGS}/{{view}}tables/{{table}}.log",
    wildcard_constraints:
        table=EXHIBITS.names("tables"),
    params:
        code=EXHIBITS.code,
        folder=lambda wildcards: f"{ROOT}/{wildcards.view}",
        about=EXHIBITS.about,
    shell:
        "mpadam exhibit tables/{wildcards.table} --folder {params.folder:q} > {log:q} 2>&1"


rule figure:
    input:
        made_of=EXHIBITS.made_of,
    output:
        report(
            f"{ROOT}/{{view}}figures/{{figure}}.svg",
            caption="../report/exhibit.rst",
            category="Figures",
            labels=EXHIBITS.labels,
        ),
        multiext(f"{ROOT}/{{view}}figures/{{figure}}", ".pdf", ".png", ".json"),
    log:
        f"{LOGS}/{{view}}figures/{{figure}}.log",
    wildcard_constraints:
        figure=EXHIBITS.names("figures"),
    params:
        code=EXHIBITS.code,
        folder=lambda wildcards: f"{ROOT}/{wildcards.view}",
        about=EXHIBITS.about,
    shell:
        "mpadam exhibit figures/{wildcards.figure} --folder {params.folder:q} > {log:q} 2>&1"


# What the probes of runs gave (training.probe_every): every figure in one job, since reading the
# probes takes longer than drawing them. The probes.jsonl of a run is no output of training, for it has to survive an
# attempt that fails, and no two runs of one summary differ in it. Where no update is probed, nobody asks for them.

if EXHIBITS.together():

    rule probes:
        input:
            study=f"{PAPER}/study.yaml",
            manifest=f"{ROOT}/data/manifest.json",
            summaries=STUDY.view("paper").summaries(),
            selections=STUDY.view("paper").selections(),
        output:
            figures=report(
                [
                    f"{PAPER}/{exhibit.files[0]}"
                    for exhibit in EXHIBITS.together()
                    if exhibit.folder == "figures"
                ],
                caption="../report/probes.rst",
                category="Figures",
                labels={"figure": "updates along training"},
            ),
            table=f"{PAPER}/tables/probes.csv",
            other=[
                f"{PAPER}/{file}"
                for exhibit in EXHIBITS.together()
                for file in exhibit.files[exhibit.folder == "figures" :]
            ],
        log:
            f"{LOGS}/paper/probes.log",
        threads: 1
        resources:
            **STUDY.site_resources(),
            mem_mb=4000,
            runtime=60,
        params:
            code=code_of(
                "mpadam.exhibits.write",
                *(exhibit.module for exhibit in EXHIBITS.together()),
            ),
        shell:
            "mpadam probes --config {input.study:q} --view paper > {log:q} 2>&1"
