# Configuration, paths and names that the other rules share.
#
# Inputs:  config.yaml, profiles/slurm/cluster.yaml, --configfile and --config, each over the ones before. Snakemake
#          names them; they are read again as `mpadam` reads them, since its own reader keeps one of two equal keys
# Outputs: STUDY (the validated study as a workflow), ROOT (its folder), LOGS, IMAGE, STOP
# Steps:   a wrong configuration ends here, in one line, before any job is planned; so do a missing image and an
#          environment that runs the code of another checkout

import os
import sys
from pathlib import Path

from mpadam.exhibits.planned import Planned
from mpadam.imports import code_of
from mpadam.source import check_checkout
from mpadam.study.load import load_study
from mpadam.study.paths import StudyPaths
from mpadam.study.section import NAME
from mpadam.workflow.container import bind_paths, bind_variable, checked_image
from mpadam.workflow.edited import is_edited, shows_refused
from mpadam.workflow.profiles import check_configfiles
from mpadam.workflow.requests import RUN, TUNING, Workflow, rule_names
from mpadam.workflow.resources import STOP_AFTER
from mpadam.workflow.scheduler import one_timer
from mpadam.workflow.signals import end_with_trainings, forward_signals, in_step


configfile: "profiles/slurm/cluster.yaml"


# The rules call `mpadam`: that of the environment that runs Snakemake, activated or not.
os.environ["PATH"] = (
    f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
)

_given = workflow.config_settings
_own = workflow.configfiles[
    len(_given.configfiles) :
]  # those of `configfile:` follow those of --configfile

try:
    check_checkout(Path(workflow.basedir))
    if workflow.is_main_process:
        check_configfiles(sys.argv[1:], _given.configfiles)
    _files = [*([] if _given.replace_workflow_config else _own), *_given.configfiles]
    _config = load_study(map(Path, _files), _given.config_args)
    STUDY = Workflow(_config, StudyPaths(_config.study))
    SOURCE_IDENTITY = STUDY.source_text()
    IMAGE = checked_image(_config)
    _binds = bind_paths(_config)
except (ValueError, OSError) as error:
    print(f"mpadam: configuration: {error}", file=sys.stderr)
    sys.exit(2)

ROOT = str(STUDY.paths.root)
LOGS = f"{ROOT}/logs"
PAPER = f"{ROOT}/paper"
EXHIBITS = Planned(
    ROOT,
    STUDY.view("").config,
    STUDY.view("paper").config,
    STUDY.selections_of_view,
)

if IMAGE is not None:

    container: IMAGE

    # Folders of the study that are not below the working directory, which is all that Snakemake binds.
    os.environ["APPTAINER_BIND"] = bind_variable(
        _binds, os.environ.get("APPTAINER_BIND", "")
    )


# In a cluster's job training stops by itself ahead of the time limit and goes on in the next attempt (exit code 75).
STOP = STOP_AFTER if workflow.remote_exec else ""
if in_step(os.environ):
    forward_signals()
end_with_trainings(lambda: workflow.local_exec)  # not known yet
one_timer()


# What was edited by hand is made again, as if its file had been named after --forcerun. That is found out by functions
# of inputs, since they are called for the jobs of the targets alone, before it is decided which of those run.


def run_files(*folders, checked):
    """An input function: run.yaml of these folders, whose summaries `checked` is made of."""

    def files(wildcards):
        named = dict(wildcards.items())
        paths = [Path(folder.format(**named)) for folder in folders]
        if workflow.is_main_process:
            table = Path(checked.format(**named))
            again = (path for path in paths if is_edited(path, checked=table))
            workflow.dag.forcefiles.update(str(path / "summary.json") for path in again)
        return [str(path / "run.yaml") for path in paths]

    return files


def trials_before_further(wildcards):
    """An input function: summaries of a tuning's trials. The further ones are in no job's outputs, so one that was lost
    or edited asks here for the job that makes them."""
    selected = Path(
        f"{ROOT}/tuning/{TUNING}/selected.yaml".format(**dict(wildcards.items()))
    )
    if workflow.is_main_process and any(
        not (folder / "summary.json").exists() or is_edited(folder, checked=selected)
        for folder in STUDY.further_folders(wildcards)
    ):
        workflow.dag.forcefiles.update(STUDY.extension(wildcards))
    return STUDY.trial_summaries(wildcards)


def nothing_unless_refused(table):
    """An input function: no file at all."""

    def files(wildcards):
        path = table.format(**dict(wildcards.items()))
        if workflow.is_main_process and shows_refused(Path(path)):
            workflow.dag.forcefiles.add(path)
        return []

    return files


wildcard_constraints:
    model=NAME,
    budget=r"\d+",
    regime=NAME,
    optimizer=NAME,
    seed=r"\d+",
    trial=r"\d+",
    view="(paper/)?",


localrules:
    all,
    all_paper,
    study,
    spec,
    trial_spec,
    select,
    aggregate,
    table,
    figure,
    claims,
    site,
