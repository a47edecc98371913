# What runs saw when they looked at their updates (training.probe_every).
#
# Inputs:  summary.json of every run of `all_paper`; the probes.jsonl beside it is no output of training, for it has to
#          survive an attempt that fails, and no two runs of one summary differ in it
# Outputs: the table probes.csv and figures beside those of `all_paper`: survival, one a regime; descent; staleness.
#          Where no update is looked at, the page does not ask for them
# Steps:   one job, seconds

from mpadam.study.probes import figures as probe_figures

PROBE_FIGURES = probe_figures(STUDY.config)

if PROBE_FIGURES:

    rule probes:
        input:
            study=f"{PAPER}/study.yaml",
            manifest=f"{ROOT}/data/manifest.json",
            summaries=STUDY.view("paper").summaries(),
            selections=STUDY.view("paper").selections(),
            code=sources("analysis"),
        output:
            figures=report(
                expand(f"{PAPER}/figures/{{figure}}.svg", figure=PROBE_FIGURES),
                caption="../report/probes.rst",
                category="Figures",
                labels={"figure": "updates along training"},
            ),
            table=f"{PAPER}/tables/probes.csv",
            other=expand(
                f"{PAPER}/figures/{{figure}}{{suffix}}",
                figure=PROBE_FIGURES,
                suffix=(".pdf", ".png", ".json", ".csv"),
            ),
        log:
            f"{LOGS}/paper/probes.log",
        threads: 1
        resources:
            **STUDY.site_resources(),
            mem_mb=4000,
            runtime=60,
        shell:
            "mpadam probes --config {input.study:q} --view paper > {log:q} 2>&1"

    PAPER_PIECES += rules.probes.output
