"""The run folder: its files, whose run they are, and what an earlier attempt left.

Nothing here imports torch: a finished run that is asked for again is answered in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.atomic import TEMPORARY, is_temporary, remove, write_json
from mpadam.canonical import record_sha256
from mpadam.presence import entries, is_there
from mpadam.study.spec import RunFile, RunSpec, differing_fields

log = logging.getLogger(__name__)

MOST_LINKS = 40  # in a path, as for the kernel


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
    def final_manifest(self) -> Path:
        """Progress at the end and the checksum of the final weights."""
        return self.checkpoints / "final" / "manifest.json"

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
    damaged = recorded is None and is_there(folder.identity)
    if damaged:
        log.warning("%s is damaged: the checkpoints beside it say whose files these are", folder.identity)
        found = _hash_of_checkpoints(folder)
        recorded = None if found is None else {"hash": found}
    others = recorded is not None and recorded.get("hash") != run.spec.hash
    if recorded is not None and others:
        if not replace:
            raise RefusedError(_difference(folder, recorded, run))
        discard(folder)
    if recorded is None or others or damaged:
        folder.checkpoints.mkdir(exist_ok=True)
        write_json(folder.identity, {"hash": run.spec.hash, "spec": run.spec.model_dump(mode="json")})


def _hash_of_checkpoints(folder: RunFolder) -> str | None:
    """The hash of the run that the checkpoints here are of; None where there is none, or none that says so."""
    manifests = (read_json(path / "manifest.json") for path in entries(folder.checkpoints) if path.is_dir())
    return next((manifest["hash"] for manifest in manifests if manifest and "hash" in manifest), None)


@dataclass(frozen=True)
class Identity:
    """Of the run whose files a folder holds: its hash, and the section `training` of its specification."""

    hash: str
    training: dict[str, Any]


def recorded_identity(folder: RunFolder) -> Identity | None:
    """The run that training began in a folder, or ended where only results were kept; None where it has begun none."""
    recorded = read_json(folder.identity) or read_json(folder.summary) or {}
    found, spec = recorded.get("hash"), recorded.get("spec")
    training = spec.get("training") if isinstance(spec, dict) else None
    return Identity(found, training) if isinstance(found, str) and isinstance(training, dict) else None


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
    for path in sorted(entries(folder.checkpoints), key=lambda path: path == folder.identity):
        remove(path)  # one by one: the folder may be a link to another disk


def sweep(folder: RunFolder, *, finished: bool) -> None:
    """Delete what killed writers left half done; of a finished run, checkpoints that it no longer needs too."""
    written = (folder.summary, folder.environment, folder.weights, folder.plot, folder.failure)
    for path in written:
        for temporary in folder.path.glob(f".{path.name}.*{TEMPORARY}"):
            remove(temporary)
    for path in entries(folder.checkpoints):
        if is_temporary(path) or (finished and path.name.startswith("step")):
            remove(path)


def _difference(folder: RunFolder, recorded: dict[str, Any], run: RunFile) -> str:
    try:
        fields = "; ".join(differing_fields(RunSpec.model_validate(recorded["spec"]), run.spec))
    except KeyError:
        fields = f"{folder.identity.name} is damaged and does not say in what they differ"
    except ValueError:
        fields = "they were written by another version of mpadam"
    return (
        f"{folder.path} holds checkpoints of run {recorded.get('hash')}, but run.yaml describes {run.spec.hash}: "
        f"{fields}. Restore run.yaml, use another folder, or give --replace to discard what is there"
    )


def restore_summary(folder: RunFolder, run: RunFile) -> bool:
    """Write `summary.json` again from the kept result, if the run is finished and its records are intact."""
    result = kept_result(folder, run.spec.hash)
    if result is None or edited_records(folder, result):
        return False
    write_json(folder.summary, {**result, "labels": run.labels.model_dump(mode="json")})
    return True


def data_of(folder: RunFolder, run: RunFile) -> Path:
    """The folder with the token files of a run.

    `run.yaml` names it relative to the run's folder as that lies in the tree of results, where any part may be a link
    to another disk; `..` after a link would leave the tree. So it is looked for from the folder's path as given, and
    with its links followed one after the other, since the path as given may itself be a link into the tree.
    Raises OSError where it is found nowhere, and one of the places cannot be read.
    """
    tried = [Path(os.path.normpath(path / run.data)) for path in _paths(folder.path)]
    unreadable = None
    for path in tried:
        try:
            if is_there(path / "manifest.json"):
                return path
        except OSError as error:
            unreadable = unreadable or error
    if unreadable is not None:
        raise unreadable
    raise ValueError(
        f"{tried[0]}: no manifest.json, so there is no prepared data, which {folder.run_file} names as {run.data}; "
        "run  mpadam data  first, or name the run's folder by its place below results/"
    )


def _paths(folder: Path) -> Iterator[Path]:
    """A folder's absolute path as given, then with its first link followed, and so on until there is none."""
    path = Path(os.path.normpath(Path.cwd() / folder))
    for _ in range(MOST_LINKS):
        yield path
        link = next((part for part in reversed([path, *path.parents]) if part.is_symlink()), None)
        if link is None:
            return
        path = Path(os.path.normpath(link.parent / link.readlink() / path.relative_to(link)))


#: fields of a summary without which it is none
_NEEDED = frozenset(
    {
        *("hash", "metrics_sha256", "status", "diverged", "labels", "val_loss", "val_ppl", "val_tokens", "steps"),
        *("positions", "target_tokens", "seconds", "peak_memory_bytes", "parameters", "bytes_per_parameter", "spec"),
    }
)


def kept_result(folder: RunFolder, run_hash: str) -> dict[str, Any] | None:
    """The copy of the summary that training keeps; None if there is none of this run, or none that is as it was."""
    result = read_json(folder.result)
    if result is None or result.get("hash") != run_hash or not result.keys() >= _NEEDED:
        return None
    return None if _not_as_trained(folder, result) else result


def altered(folder: RunFolder, summary: dict[str, Any]) -> str | None:
    """Which field of a summary is not what training recorded in this folder, or None.

    A folder that was copied without its checkpoints has nothing to compare with.
    """
    if (result := read_json(folder.result)) is None:
        return _not_as_trained(folder, summary)
    for key in sorted((summary.keys() | result.keys()) - {"labels"}):
        here, kept = summary.get(key), result.get(key)
        if here != kept:
            return f"{key} is {_short(here)}, where checkpoints/{folder.result.name} has {_short(kept)}"
    return _not_as_trained(folder, summary)


def edited_records(folder: RunFolder, summary: dict[str, Any]) -> Path | None:
    """Which of the records beside a summary is not the one that it was made with. Older ones say nothing of probes."""
    recorded = {folder.metrics: summary.get("metrics_sha256")}
    if "probes_sha256" in summary:
        recorded[folder.probes] = summary["probes_sha256"]
    return next((path for path, digest in recorded.items() if digest is None or sha256(path) != digest), None)


def _not_as_trained(folder: RunFolder, summary: dict[str, Any]) -> str | None:
    """Which field of a summary is not what the final checkpoint recorded, or None; None where that cannot be told."""
    manifest = read_json(folder.final_manifest) or {}
    progress = manifest.get("progress")
    if not isinstance(progress, dict) or not isinstance(progress.get("validation"), list):
        return None
    recorded = {"steps": progress.get("step"), "train_loss": progress.get("last_loss")}
    recorded |= {key: progress.get(key) for key in ("positions", "target_tokens", "validation")}
    final = progress["validation"][-1] if progress["validation"] else None
    if summary.get("status") == "completed" and isinstance(final, dict):
        recorded |= {f"val_{key}": final.get(name) for key, name in _VALIDATION.items()}
    for key, value in recorded.items():
        if summary.get(key) != value:
            return f"{key} is {_short(summary.get(key))}, where the final checkpoint has {_short(value)}"
    last = final.get("step") if isinstance(final, dict) else None
    if (summary.get("status") == "completed") != (last == _planned_steps(summary)):
        return f"status is {_short(summary.get('status'))}, and the last validation that was kept is of step {last}"
    if manifest.get("result_sha256", same := result_sha256(summary)) != same:  # older ones have none
        return "its checksum is not the one that the final checkpoint has"
    return None


def result_sha256(summary: dict[str, Any]) -> str:
    """Checksum of a summary but for its labels, which may be changed later."""
    return record_sha256({key: value for key, value in summary.items() if key != "labels"})


def _planned_steps(summary: dict[str, Any]) -> object:
    try:
        return summary["spec"]["training"]["steps"]
    except (KeyError, TypeError):
        return None


_VALIDATION = {"loss": "loss", "ppl": "perplexity", "tokens": "tokens"}


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def raise_known_failure(folder: RunFolder, run: RunFile) -> None:
    """Raise KnownFailureError if this very run has failed before; forget failures of other runs."""
    failure = read_json(folder.failure)
    if failure is not None and failure.get("hash") == run.spec.hash:
        raise KnownFailureError(
            f"{failure.get('error', 'it does not say why')} (an earlier attempt ended so, and run.yaml is the same "
            f"since; after mending another cause, delete {folder.failure})"
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
