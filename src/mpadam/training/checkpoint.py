"""Checkpoints: folders that are whole or absent, checked before they are trusted.

    checkpoints/step00001000/{state.pt, manifest.json}     the last two are kept while a run is under way
    checkpoints/final/{state.pt, manifest.json}            weights only, once it has ended; the others are deleted

A checkpoint is written under a temporary name, brought to disk and renamed. Its manifest has the run's hash, the
progress and a checksum of the state; the newest one that is intact, of this run and of this version counts, and any
other is passed over with a warning. Disk use of a run: two full states (weights, masters, moments) while it trains and
a third for the moment of a save, then 2 bytes per parameter.
"""

import errno
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from mpadam.atomic import UNSUPPORTED, is_temporary, remove, sync, sync_folder, temporary_name, write_json
from mpadam.canonical import record_sha256
from mpadam.presence import entries
from mpadam.stored import sha256
from mpadam.study.run_folder import read_json
from mpadam.study.section import first_fault
from mpadam.training.folder import RefusedError

log = logging.getLogger(__name__)

KEPT = 2
FINAL = "final"
OPTIONAL = {"metrics_sha256", "probes_sha256"}  # older versions have recorded none
VALIDATION = {"step", "loss", "perplexity", "tokens"}


@dataclass
class Progress:
    """How far a run is: everything that its records count, from its very start.

    positions: sequence positions seen, pads too. target_tokens: those that counted in the loss.
    seconds: training time over all attempts; device_seconds: times the number of ranks.
    timed_*: what the throughput is taken from. last_loss: of the latest update.
    validation: one entry an evaluation. metrics_bytes, probes_bytes: length of metrics.jsonl and of probes.jsonl.
    metrics_sha256, probes_sha256: of so many bytes of them.
    world_sizes: numbers of ranks that have trained it, one after the other.
    """

    step: NonNegativeInt = 0
    positions: NonNegativeInt = 0
    target_tokens: NonNegativeInt = 0
    seconds: NonNegativeFloat = 0.0
    device_seconds: NonNegativeFloat = 0.0
    timed_seconds: NonNegativeFloat = 0.0
    timed_tokens: NonNegativeInt = 0
    timed_positions: NonNegativeInt = 0
    last_loss: float | None = None
    peak_memory_bytes: NonNegativeInt = 0
    metrics_bytes: NonNegativeInt = 0
    metrics_sha256: str | None = None
    probes_bytes: NonNegativeInt = 0
    probes_sha256: str | None = None
    attempts: NonNegativeInt = 0
    validation: list[dict[str, int | float]] = field(default_factory=list)
    world_sizes: list[PositiveInt] = field(default_factory=list)


class UnusableError(ValueError):
    """A checkpoint that training cannot go on from, and why."""


class OtherVersionError(UnusableError):
    """It is whole and of this run, and this version of mpadam cannot read it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found intact."""

    path: Path
    progress: Progress

    def state(self) -> dict[str, Any]:
        """The saved tensors, on the CPU. Raises OtherVersionError if they are not what this version writes."""
        try:
            state = torch.load(self.path / "state.pt", map_location="cpu", weights_only=True)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # pickle, zip and torch each raise their own
            why = str(error).strip().partition("\n")[0]
            raise OtherVersionError(f"state.pt cannot be loaded with weights_only: {why}") from error
        if not isinstance(state, dict):
            raise OtherVersionError(f"state.pt holds a {type(state).__name__}, not tensors by name")
        return state


def save(root: Path, *, run_hash: str, progress: Progress, state: dict[str, Any], result: str | None = None) -> Path:
    """Write a checkpoint and return its folder, which is named after the step.

    result: checksum of the result of the run, which has ended: the folder is the final one.
    Raises OSError, with what is left, if the disk is full or fails; what was there before stays as it was.
    """
    final = root / (step_name(progress.step) if result is None else FINAL)
    temporary = temporary_name(final)
    temporary.mkdir(parents=True)
    try:
        with (temporary / "state.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            sync(file.fileno())
        record = asdict(progress)
        manifest = {
            "hash": run_hash,
            "state_sha256": sha256(temporary / "state.pt"),
            "progress": record,
            "progress_sha256": record_sha256(record),
            **({} if result is None else {"result_sha256": result}),
        }
        write_json(temporary / "manifest.json", manifest)
        sync_folder(temporary)
        remove(final)  # a broken one that was passed over
        _rename(temporary, final)
        sync_folder(root)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, Exception) and (fault := _disk_fault(error)) is not None:
            raise OSError(fault.errno, f"{final.name} could not be saved: {fault.strerror}; {_left(root)}") from error
        raise
    return final


def _rename(temporary: Path, final: Path) -> None:
    """Give a folder its name; file by file, the manifest last, where a file system renames no folders, or has kept a
    part of what had the name before."""
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in UNSUPPORTED | {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        final.mkdir(exist_ok=True)
        for name in ("state.pt", "manifest.json"):
            (temporary / name).replace(final / name)
        remove(temporary)


def _disk_fault(error: BaseException | None) -> OSError | None:
    """The OSError that an error is or comes from: torch's writer raises another one on its way out."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def _left(root: Path) -> str:
    folders = step_folders(root)
    return f"{folders[-1]} is as it was" if folders else "there is no checkpoint before it"


def newest(
    root: Path,
    *,
    run_hash: str,
    usable: Callable[[Progress], bool] = lambda _: True,
    unread: Sequence[str] = (),
) -> Checkpoint | None:
    """The newest checkpoint of the run that is intact and usable.

    usable: a further condition, e.g. that the metrics file is as long as it was.
    unread: names of those whose state was found to be another version's.
    Raises RefusedError if there are only such of another version: damaged ones are done again, those need not be lost.
    """
    others = [root / name for name in unread]
    for path in reversed(step_folders(root)):
        if path in others:
            continue
        try:
            checkpoint = read(path, run_hash=run_hash)
            if usable(checkpoint.progress):
                return checkpoint
            warn(path, "the records no longer hold what was logged until then")
        except UnusableError as error:
            others += [path] if isinstance(error, OtherVersionError) else []
            warn(path, str(error))
    if others:
        raise RefusedError(
            f"{max(others)} is whole and of this run, but was written by another version of mpadam, and there is no "
            f"other checkpoint: train with that version, or delete {root} to start from the beginning"
        )
    return None


def warn(path: Path, why: str) -> None:
    log.warning("checkpoint %s is broken or does not fit (%s): going back to the one before", path, why)


def read(path: Path, *, run_hash: str) -> Checkpoint:
    """The checkpoint in a folder. Raises UnusableError if it is absent, damaged, of another run or another version."""
    manifest = read_json(path / "manifest.json")
    if manifest is None:
        raise UnusableError("no manifest.json, or no JSON in it")
    if manifest.get("hash") != run_hash:
        raise UnusableError(f"of run {manifest.get('hash')}")
    if manifest.get("state_sha256") is None or manifest["state_sha256"] != sha256(path / "state.pt"):
        raise UnusableError("state.pt is not what manifest.json says")
    progress = _progress(manifest.get("progress"))
    if manifest.get("progress_sha256", same := record_sha256(manifest["progress"])) != same:  # older ones have none
        raise UnusableError("its progress is not what was saved")
    if path.name not in (FINAL, step_name(progress.step)):
        raise UnusableError(f"its progress is that of step {progress.step}")
    return Checkpoint(path, progress)


def _progress(record: Any) -> Progress:
    """A stored record, which has to have exactly the fields of this version, but for `OPTIONAL` ones."""
    known = {entry.name for entry in fields(Progress)}
    found = set(record) if isinstance(record, dict) else set()
    if differing := (found ^ known) - OPTIONAL:
        names = ", ".join(sorted(differing))
        raise OtherVersionError(f"its progress is recorded by another version: {names} is in one of them only")
    try:
        progress = _PROGRESS.validate_json(json.dumps(record), strict=True)
    except ValidationError as error:
        raise UnusableError(f"its progress is damaged: {first_fault(error)}") from None
    if any(entry.keys() != VALIDATION for entry in progress.validation):
        raise UnusableError(f"its progress is damaged: an entry of validation has not exactly {sorted(VALIDATION)}")
    return progress


_PROGRESS = TypeAdapter(Progress)


def retain(root: Path, *, count: int = KEPT, saved: Path | None = None) -> None:
    """Delete all but the newest `count` checkpoints.

    saved: the one just written; later ones have been passed over and do not count. They are left to be replaced.
    """
    older = [path for path in step_folders(root) if saved is None or path <= saved][: -count or None]
    for path in [*filter(is_temporary, entries(root)), *older]:  # the former could not be deleted before
        remove(path)


def step_name(step: int) -> str:
    return f"step{step:08d}"


def step_folders(root: Path) -> list[Path]:
    """Folders of the checkpoints of a run under way, oldest first."""
    return [path for path in entries(root) if re.fullmatch(r"step\d{8}", path.name)]
