"""The run folder: its files, whose run they are, and what an earlier attempt left.

Nothing here imports torch: a finished run that is asked for again is answered in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.atomic import write_json
from mpadam.presence import is_there
from mpadam.study.spec import RunFile, RunSpec, differing_fields


class RefusedError(Exception):
    """This folder must not be touched now: another run's files, or another writer. Exit code 3."""


class KnownFailureError(ValueError):
    """An earlier attempt failed in a way that repeating cannot mend. Exit code 2."""


@dataclass(frozen=True)
class RunFolder:
    """Names of everything in a run folder. Snakemake deletes `summary.json` before each start, and nothing else."""

    path: Path

    @property
    def run_file(self) -> Path:
        return self.path / "run.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def probes(self) -> Path:
        """A line a look at an update, where the run is asked for any (`probe_every`)."""
        return self.path / "probes.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def log(self) -> Path:
        return self.path / "train.log"

    @property
    def plot(self) -> Path:
        return self.path / "loss.svg"

    @property
    def weights(self) -> Path:
        """How each parameter is stored."""
        return self.path / "weights.csv"

    @property
    def failure(self) -> Path:
        return self.path / "failure.json"

    @property
    def lock(self) -> Path:
        return self.path / "train.lock"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def identity(self) -> Path:
        """The specification that the files of this folder come from."""
        return self.checkpoints / "spec.json"

    @property
    def result(self) -> Path:
        """A copy of `summary.json` that no workflow deletes."""
        return self.checkpoints / "result.json"


def claim(folder: RunFolder, run: RunFile, *, replace: bool) -> None:
    """Make the folder this run's.

    replace: whether files of a run with another hash may be discarded. The workflow says yes, since there `run.yaml`
        is what counts; by hand it is a mistake more often than not.
    Raises RefusedError, with the differing fields, if the folder holds another run's files and `replace` is false.
    """
    recorded = read_json(folder.identity)
    if recorded is not None and recorded.get("hash") != run.spec.hash:
        if not replace:
            raise RefusedError(_difference(folder, recorded, run))
        discard(folder)
    if recorded is None or recorded.get("hash") != run.spec.hash:
        folder.checkpoints.mkdir(exist_ok=True)
        write_json(folder.identity, {"hash": run.spec.hash, "spec": run.spec.model_dump(mode="json")})


def discard(folder: RunFolder) -> None:
    """Delete everything that training made here, the identity last but for the log, which only grows."""
    for path in (
        folder.summary,
        folder.result,
        folder.plot,
        folder.environment,
        folder.failure,
        folder.metrics,
        folder.probes,
    ):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder.checkpoints, ignore_errors=True)


def sweep(folder: RunFolder, *, finished: bool) -> None:
    """Delete what killed writers left half done; of a finished run, checkpoints that it no longer needs too."""
    written = (folder.summary, folder.environment, folder.weights, folder.plot, folder.failure)
    for path in written:
        for temporary in folder.path.glob(f".{path.name}.*.tmp"):
            temporary.unlink()
    for path in [*folder.checkpoints.glob(".*.tmp"), *(folder.checkpoints.glob("step*") if finished else [])]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _difference(folder: RunFolder, recorded: dict[str, Any], run: RunFile) -> str:
    try:
        fields = "; ".join(differing_fields(RunSpec.model_validate(recorded["spec"]), run.spec))
    except (KeyError, ValueError):
        fields = "they were written by another version of mpadam"
    return (
        f"{folder.path} holds checkpoints of run {recorded.get('hash')}, but run.yaml describes {run.spec.hash}: "
        f"{fields}. Restore run.yaml, use another folder, or give --replace to discard what is there"
    )


def restore_summary(folder: RunFolder, run: RunFile) -> bool:
    """Write `summary.json` again from the kept result, if the run is finished and its metrics are intact."""
    result = read_json(folder.result)
    if result is None or result.get("hash") != run.spec.hash or sha256(folder.metrics) != result["metrics_sha256"]:
        return False
    write_json(folder.summary, {**result, "labels": run.labels.model_dump(mode="json")})
    return True


def raise_known_failure(folder: RunFolder, run: RunFile) -> None:
    """Raise KnownFailureError if this very run has failed before; forget failures of other runs."""
    failure = read_json(folder.failure)
    if failure is not None and failure.get("hash") == run.spec.hash:
        raise KnownFailureError(
            f"{failure['error']} (an earlier attempt ended so, and run.yaml is the same since; after mending another "
            f"cause, delete {folder.failure})"
        )
    folder.failure.unlink(missing_ok=True)


def sha256(path: Path) -> str | None:
    """SHA-256 of a file, None if there is none."""
    if not is_there(path):
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or no such object, which a torn disk can leave."""
    if not is_there(path):
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # gone meanwhile, as a lock may be
        return None
    return content if isinstance(content, dict) else None
