"""Reading a run folder: its files, whose run they are, what was logged, and whether they are as training left them.

Nothing here imports torch: a finished run that is asked for again is answered in a fraction of a second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.canonical import record_sha256
from mpadam.presence import is_there
from mpadam.stored import sha256
from mpadam.study.section import short
from mpadam.study.spec import RunFile

MOST_LINKS = 40  # in a path, as for the kernel
WINDOW = 8192  # bytes at the end of a file; a line of metrics.jsonl has about 200


class _Place:
    """A file or folder of a run folder, by its name in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _owner: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Names of everything in a run folder. Snakemake deletes `summary.json` before each start, and nothing else.

    probes: one line per probe of an update, if the run has probes (`probe_every`). weights: how each parameter is
    stored. identity: the specification that the files of this folder come from. final_manifest: progress at the end
    and the checksum of the final weights. result: a copy of `summary.json` that no workflow deletes.
    """

    path: Path
    run_file = _Place("run.yaml")
    metrics = _Place("metrics.jsonl")
    probes = _Place("probes.jsonl")
    summary = _Place("summary.json")
    environment = _Place("environment.json")
    log = _Place("train.log")
    plot = _Place("loss.svg")
    weights = _Place("weights.csv")
    failure = _Place("failure.json")
    lock = _Place("train.lock")
    checkpoints = _Place("checkpoints")
    identity = _Place("checkpoints/spec.json")
    final_manifest = _Place("checkpoints/final/manifest.json")
    result = _Place("checkpoints/result.json")


def read_run(path: Path) -> tuple[str | None, int | None]:
    """Hash and number of steps of a run.yaml, (None, None) where there is none.

    Two lines are looked for, since parsing a thousand files as YAML takes seconds.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if is_there(path) else []
    values = dict(line.strip().partition(": ")[::2] for line in lines)
    steps = values.get("steps", "")
    return values.get("hash", "").strip("'\"") or None, int(steps) if steps.isdecimal() else None


def recorded_identity(folder: RunFolder) -> tuple[str, dict[str, Any]] | None:
    """The run that training began in a folder, or ended where only results were kept: its hash, and the section
    `training` of its specification; None where it has begun none."""
    recorded = read_json(folder.identity) or read_json(folder.summary) or {}
    found, spec = recorded.get("hash"), recorded.get("spec")
    training = spec.get("training") if isinstance(spec, dict) else None
    return (found, training) if isinstance(found, str) and isinstance(training, dict) else None


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
            return f"{key} is {short(here, 40)}, where checkpoints/{folder.result.name} has {short(kept, 40)}"
    return _not_as_trained(folder, summary)


def edited_records(folder: RunFolder, summary: dict[str, Any]) -> Path | None:
    """Which of the records next to a summary is not the one that it was made with. Older ones say nothing of probes."""
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
            return f"{key} is {short(summary.get(key), 40)}, where the final checkpoint has {short(value, 40)}"
    last = final.get("step") if isinstance(final, dict) else None
    if (summary.get("status") == "completed") != (last == _planned_steps(summary)):
        return f"status is {short(summary.get('status'), 40)}, and the last validation that was kept is of step {last}"
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


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or no such object, which a torn disk can leave."""
    if not is_there(path):
        return None
    try:
        return _object(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError):  # the former: gone meanwhile, as a lock may be
        return None


def _object(text: str | bytes) -> dict[str, Any] | None:
    """The object that a text holds as JSON; None where it holds none."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics file. Raises ValueError, with its number, for one that is not what training writes."""
    with path.open("rb") as file:
        return list(records(file, path))


def records(lines: Iterable[bytes], path: Path) -> Iterator[dict[str, Any]]:
    """The objects in these lines of a metrics file."""
    for number, line in enumerate(lines, start=1):
        record = _object(line)
        if record is None:
            raise ValueError(
                f"{path}, line {number}: {line[:40]!r} is not a line that training writes; put back what was there, or "
                f"delete the file and the folder {path.parent / 'checkpoints'}, and the run is made again"
            )
        yield record


def last_lines(path: Path, *, window: int = WINDOW) -> list[str]:
    """The whole lines among the last `window` bytes; a line that is still being written is left out.

    Empty for a file that is missing or empty.
    """
    if not is_there(path):
        return []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window - 1))
            block = file.read()
    except FileNotFoundError:  # gone meanwhile
        return []
    whole = block[: block.rfind(b"\n") + 1].splitlines()
    if size > window + 1:
        whole = whole[1:]  # its beginning lies before the window
    return [line.decode("utf-8", errors="replace") for line in whole]


def last_records(path: Path, *, window: int = WINDOW) -> list[dict[str, Any]]:
    """The JSON objects among the last lines of a file; what is none is passed over."""
    found = (_object(line) for line in last_lines(path, window=window))
    return [record for record in found if record is not None]
