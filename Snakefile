# The study as a workflow: text -> token files -> tuning -> training -> tables, figures and a page.
#
#   snakemake --profile profiles/smoke      the smoke study: minutes on a laptop's CPU, offline
#   snakemake --profile profiles/local      the study of config.yaml on this machine
#
# Which runs there are, what they depend on and what makes one stale is decided in src/mpadam/workflow; the rules in
# workflow/rules name files and commands. profiles/default says when a job runs again and applies always.


configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/spec.smk"
include: "workflow/rules/tune.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/together.smk"
include: "workflow/rules/aggregate.smk"
include: "workflow/rules/diagnose.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/exhibits.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"


onstart:
    # For src/snakemake_logger_plugin_mpadam: the rule of each job, and the seconds that the plan expects it to train.
    logger.info(
        "",
        extra={
            "planned": {
                job.jobid: (job.rule.name, STUDY.expected_seconds(job.output))
                for job in workflow.dag.needrun_jobs()
            }
        },
    )


rule all:
    default_target: True
    input:
        f"{ROOT}/index.html",
        STUDY.view("").summaries(),  # a lost one is asked for, though the page made of it is there


rule all_paper:
    input:
        f"{ROOT}/paper/index.html",
        STUDY.view("paper").summaries(),
