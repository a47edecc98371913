# Training: one job per (model, budget, regime, optimizer, seed).
#
# Inputs:  run.yaml, and nothing else: token files are checked against the fingerprint that it holds
# Outputs: summary.json. Metrics, log and checkpoints are next to it, undeclared: Snakemake deletes declared outputs
#          before a job starts and after it fails
# Steps:   resume from the newest checkpoint of the same hash; a run that is finished under this hash is not repeated;
#          in a cluster's job stop ahead of its time limit, for the next attempt to go on


rule train:
    input:
        run_files(f"{ROOT}/runs/{RUN}", checked=f"{ROOT}/tables/runs.csv"),
    output:
        f"{ROOT}/runs/{RUN}/summary.json",
    log:
        f"{LOGS}/train/{RUN}.log",
    benchmark:
        f"{LOGS}/train/{RUN}.benchmark.tsv"
    threads: STUDY.config.training.threads
    resources:
        **STUDY.training_resources(),
    params:
        folder=subpath(output[0], parent=True),
    shell:
        "{resources.launcher} train "
        + STOP
        + " --replace --run-dir {params.folder:q} > {log:q} 2>&1"
