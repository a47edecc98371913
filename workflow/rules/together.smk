# Trainings that share a job (`grids: runs_per_job`): many short ones, where starting a process takes as long as a run.
#
# Inputs:  run.yaml of each run of the job
# Outputs: summary.json of each
# Steps:   train one after another. What is finished under its hash is answered from its folder and not repeated, so
#          one changed run repeats that run alone, though Snakemake starts the whole job. The longest job starts first,
#          and so do its specifications: while they wait for a shorter job to end, theirs cannot start

_jobs = STUDY.shared_jobs()
for _name, _rule in rule_names(_jobs).items():

    _keys = _jobs[_name]
    _priority = round(STUDY.expected_seconds(STUDY.run_files(_keys, "summary.json")))

    rule:
        name:
            f"specs_of_{_rule}"
        input:
            manifest=f"{ROOT}/data/manifest.json",
            selected=STUDY.selected_of(_keys),
        output:
            STUDY.run_files(_keys, "run.yaml"),
        log:
            f"{LOGS}/spec/{_name}.log",
        priority: _priority
        localrule: True
        params:
            requests=STUDY.run_texts(_keys),
            selected=STUDY.selected_for_each(_keys),
        shell:
            "mpadam spec --request {params.requests:q} --manifest {input.manifest:q} "
            "--selected {params.selected:q} --out {output:q} > {log:q} 2>&1"

    rule:
        name:
            _rule
        input:
            run_files(*STUDY.run_files(_keys, ""), checked=f"{ROOT}/tables/runs.csv"),
        output:
            STUDY.run_files(_keys, "summary.json"),
        log:
            f"{LOGS}/train/{_name}.log",
        benchmark:
            f"{LOGS}/train/{_name}.benchmark.tsv"
        priority: _priority
        threads: STUDY.config.training.threads
        resources:
            **STUDY.shared_resources(_keys),
        params:
            folders=STUDY.run_files(_keys, ""),
        shell:
            "{resources.launcher} train "
            + STOP
            + " --replace --run-dir {params.folders:q} > {log:q} 2>&1"

    workflow.ruleorder(_rule, "train")
    workflow.ruleorder(f"specs_of_{_rule}", "spec")
