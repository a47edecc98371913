# Tuning: the same number of trials for every optimizer. Trials use a seed that no run uses, and are compared on the
# half of the validation set that no table reports.
#
# Inputs:  run.yaml of each trial
# Outputs: summary.json of each trial; selected.yaml, the rates that the runs use
# Steps:   train the trials (one job each, or all of a tuning in one: tuning.trials_per_job); train further ones, in one
#          job, while the best one lacks a neighbour to compare it with (tuning.extend); take the best
#
# How many further trials there are, and which, is known only when the ones before are done. They are no outputs:
# extension.yaml says which there are. A finished one is answered from its folder when the job runs again.

if STUDY.config.tuning.trials_per_job == "all":

    # Per tuning, since the number of its trials is its optimizer entry's: a rule of its own each, of one pattern.
    _tunings = {
        f"trials/{key.model}/{key.regime}/{key.optimizer}": key
        for key in STUDY.tunings()
    }
    for _tuning, _name in rule_names(_tunings).items():
        _key = _tunings[_tuning]

        rule:
            name:
                f"specs_of_{_name}"
            input:
                manifest=f"{ROOT}/data/manifest.json",
            output:
                STUDY.trial_files(_key, "run.yaml"),
            log:
                f"{LOGS}/spec/tuning/{_key.model}/{_key.regime}/{_key.optimizer}.log",
            localrule: True
            params:
                requests=STUDY.trial_texts(_key),
            shell:
                "mpadam spec --request {params.requests:q} --manifest {input.manifest:q} --out {output:q} > {log:q} 2>&1"

        workflow.ruleorder(f"specs_of_{_name}", "trial_spec")

        rule:
            name:
                _name
            input:
                run_files(
                    *STUDY.trial_files(_key, ""),
                    checked=str(STUDY.paths.selected(_key)),
                ),
            output:
                STUDY.trial_files(_key, "summary.json"),
            log:
                f"{LOGS}/tune/{_key.model}/{_key.regime}/{_key.optimizer}.log",
            benchmark:
                f"{LOGS}/tune/{_key.model}/{_key.regime}/{_key.optimizer}.benchmark.tsv"
            threads: STUDY.config.training.threads
            resources:
                **STUDY.training_resources(_key),
            params:
                folders=STUDY.trial_files(_key, ""),
            shell:
                "{resources.launcher} train "
                + STOP
                + " --replace --run-dir {params.folders:q} > {log:q} 2>&1"

else:

    rule trial:
        input:
            run_files(
                f"{ROOT}/tuning/{TUNING}/trial{{trial}}",
                checked=f"{ROOT}/tuning/{TUNING}/selected.yaml",
            ),
        output:
            f"{ROOT}/tuning/{TUNING}/trial{{trial}}/summary.json",
        log:
            f"{LOGS}/tune/{TUNING}/trial{{trial}}.log",
        benchmark:
            f"{LOGS}/tune/{TUNING}/trial{{trial}}.benchmark.tsv"
        threads: STUDY.config.training.threads
        resources:
            **STUDY.training_resources(),
        params:
            folder=subpath(output[0], parent=True),
        shell:
            "{resources.launcher} train "
            + STOP
            + " --replace --run-dir {params.folder:q} > {log:q} 2>&1"


if STUDY.config.tuning.extend:

    rule extend:
        input:
            trials_before_further,
        output:
            f"{ROOT}/tuning/{TUNING}/extension.yaml",
        log:
            f"{LOGS}/tune/{TUNING}/extend.log",
        benchmark:
            f"{LOGS}/tune/{TUNING}/extend.benchmark.tsv"
        threads: STUDY.config.training.threads
        resources:
            **STUDY.extension_resources(),
        params:
            searched=STUDY.tuning_text,
            folders=STUDY.trial_folders,
        shell:
            "{resources.launcher} extend "
            + STOP
            + " --trials {params.folders:q} --searched {params.searched:q} --out {output:q} > {log:q} 2>&1"


rule select:
    input:
        trials=STUDY.trial_summaries,
        further=STUDY.extension,
    output:
        f"{ROOT}/tuning/{TUNING}/selected.yaml",
    log:
        f"{LOGS}/tune/{TUNING}/select.log",
    params:
        searched=STUDY.tuning_text,
    shell:
        "mpadam tune --trials {input.trials:q} --searched {params.searched:q} --out {output:q} > {log:q} 2>&1"
