"""Trials of a tuning as folders: reading what one reached, and setting up a further one."""

import json
from pathlib import Path
from typing import Any

from mpadam.stored import stored
from mpadam.study.run_folder import RunFolder, altered
from mpadam.study.spec import read_run_file, write_run_file

REMEDY = "delete it and run the workflow again"


def read_trial(folder: Path, values: dict[str, float]) -> dict[str, Any]:
    """What selected.yaml says of a finished trial.

    Raises ValueError if its summary is no summary, was edited, or is that of a trial with other values.
    """
    path = RunFolder(folder).summary
    with stored(path, remedy=REMEDY):
        summary = json.loads(path.read_text(encoding="utf-8"))
        found = summary["spec"]["optimizer"]["values"]
        trial = {"values": values, **{key: summary[key] for key in ("status", "val_loss", "hash")}}
        fault = altered(RunFolder(folder), summary)
    if fault:
        raise ValueError(f"{path}: edited: {fault}; {REMEDY}")
    wrong = [key for key, value in values.items() if found.get(key) != value]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]} is {found.get(wrong[0])}, not {values[wrong[0]]}: stale")
    return trial


def further_folder(first: Path, number: int) -> Path:
    """The folder of a tuning's trial of that number, next to its first one."""
    return first.parent / f"trial{number}"


def write_further(first: Path, number: int, values: dict[str, float]) -> None:
    """The run.yaml of a further trial: that of the first one, but for its number and its searched values."""
    run = read_run_file(RunFolder(first).run_file)
    optimizer = run.spec.optimizer.model_copy(update={"values": {**run.spec.optimizer.values, **values}})
    labels = run.labels.model_copy(update={"trial": number})
    spec = run.spec.model_copy(update={"optimizer": optimizer})
    folder = RunFolder(further_folder(first, number))
    write_run_file(folder.run_file, run.model_copy(update={"labels": labels, "spec": spec}))
