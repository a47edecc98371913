"""Reading a study's results: what its grid asks for, and nothing else.

Every run of the grid becomes one row, whatever became of it:

    completed   its summary is whole, belongs to its run.yaml and metrics.jsonl, and to the configuration as it is now
    diverged    the same, but the run ended in a loss or gradient that is not finite
    missing     there is no summary (yet)
    refused     there is a summary, and something about it does not fit: `problem` says which file, and what

Only completed runs carry numbers. Folders that the grid does not ask for are not looked at.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from mpadam.analysis.tunings import Tuning, read_tuning
from mpadam.presence import is_there, why_unreadable
from mpadam.study.auto import recorded_auto
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey, run_keys, selection_key, tuning_keys
from mpadam.study.load import ConfigError
from mpadam.study.paths import StudyPaths
from mpadam.study.run_folder import RunFolder, altered, edited_records, read_json
from mpadam.study.spec import resolve, run_request

STATUSES = ("completed", "diverged", "missing", "refused")
_KEYS = {"model": "str", "budget": "int64", "regime": "str", "optimizer": "str", "seed": "int64", "status": "str"}
#: fields of a summary that a completed run contributes
_RESULTS = {
    "val_loss": "float64",
    "val_ppl": "float64",
    "val_tokens": "Int64",
    "steps": "Int64",
    "positions": "Int64",
    "target_tokens": "Int64",
    "seconds": "float64",
    "peak_memory_bytes": "Int64",
    "parameters": "Int64",
    "bytes_per_parameter": "float64",
}
_ABOUT = {"diverged_step": "Int64", "last_finite_loss": "float64", "hash": "str", "folder": "str", "problem": "str"}
#: columns of `runs.csv` and their types
COLUMNS: Mapping[str, str] = {**_KEYS, **_RESULTS, **_ABOUT}


_MANIFEST = {"fingerprint", "tokenizer_fingerprint", "vocab_size", "train_sequences", "unigram_entropy"}


@dataclass(frozen=True)
class Collected:
    """A study and what became of it.

    runs: one row per run that the grid asks for, in the grid's order, with `COLUMNS`.
    tunings: what was chosen for each (model, regime, optimizer).
    manifest: of the data, or None where it is not there.
    """

    config: StudyConfig
    paths: StudyPaths
    runs: pd.DataFrame
    tunings: tuple[Tuning, ...]
    manifest: dict[str, Any] | None

    def count(self, status: str) -> int:
        return int((self.runs["status"] == status).sum())

    def updates(self, model: str, budget: int) -> int:
        positions = self.config.training.global_batch_size * self.config.data.sequence_length
        return self.config.models[model].steps(budget, vocab_size=self.vocabulary or 0, positions_per_step=positions)

    @property
    def vocabulary(self) -> int | None:
        """Tokens of the study's vocabulary; None where it is not known yet."""
        return self.manifest["vocab_size"] if self.manifest else self.config.tokenizer.vocab_size

    @property
    def unigram_entropy(self) -> float | None:
        """Nats a token of the validation text when nothing but the frequency of its tokens is known: a yardstick."""
        return None if self.manifest is None else float(self.manifest["unigram_entropy"])

    @property
    def unverified(self) -> bool:
        """Whether there are results, and no manifest to hold them against."""
        return self.manifest is None and self.count("missing") < len(self.runs)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over what became of every run: tells what was made of these runs from what was not."""
        rows = self.runs[["folder", "status", "hash"]].to_csv(index=False) + self.runs["val_loss"].to_csv(index=False)
        return hashlib.sha256(rows.encode()).hexdigest()[:16]

    def above_unigram(self) -> pd.DataFrame:
        """Completed runs that learned nothing beyond the frequency of tokens."""
        if self.unigram_entropy is None:
            return self.runs.iloc[:0]
        return self.runs[(self.runs["status"] == "completed") & (self.runs["val_loss"] >= self.unigram_entropy)]

    @property
    def refusals(self) -> list[str]:
        """One line for each summary or selection that is not used because something about it does not fit."""
        runs, paths = self.runs[self.runs["status"] == "refused"], replace(self.paths, unpacked=None)
        lines = [f"{paths.root / folder}/{why}" for folder, why in runs[["folder", "problem"]].to_numpy()]
        return [*lines, *(f"{paths.tuning(t.key)}/{t.problem}" for t in self.tunings if t.status == "refused")]


class RefusedError(ValueError):
    """The summary must not be used."""


def collect(config: StudyConfig, paths: StudyPaths) -> Collected:
    """Read what the grid of `config` asks for from the study's folder."""
    manifest = _read_manifest(paths.manifest)
    tunings = {key: read_tuning(config, paths, key) for key in tuning_keys(config)}
    rows = [_run_row(config, paths, key, manifest, tunings) for key in run_keys(config)]
    runs = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    return Collected(config, paths, runs, tuple(tunings.values()), manifest)


def write_runs(runs: pd.DataFrame, path: Path) -> None:
    """One row per run; a number that does not exist is an empty cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs.to_csv(path, index=False, lineterminator="\n")


def read_collected(config: StudyConfig, paths: StudyPaths) -> Collected:
    """The study with the runs that `write_runs` left in its tables, so that summaries are not read again.

    Raises ConfigError where that table is not there, or not what `write_runs` writes.
    """
    path = paths.output / "tables" / "runs.csv"
    empty = {column: [""] for column, kind in COLUMNS.items() if kind != "str"}
    try:
        runs = pd.read_csv(path, dtype=dict(COLUMNS), keep_default_na=False, na_values=empty)[list(COLUMNS)]
    except FileNotFoundError:
        raise ConfigError(f"{path}: not there; run  mpadam aggregate  first") from None
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path}: not what mpadam aggregate writes ({error}); delete it and run that again") from None
    tunings = tuple(read_tuning(config, paths, key) for key in tuning_keys(config))
    return Collected(config, paths, runs, tunings, _read_manifest(paths.manifest))


def _read_manifest(path: Path) -> dict[str, Any] | None:
    if not is_there(path):
        return None
    if (manifest := read_json(path)) is None:
        raise ConfigError(f"{path}: not a JSON object; delete it and run the workflow again")
    if lacking := _MANIFEST - manifest.keys():
        raise ConfigError(f"{path}: has no {min(lacking)}; delete it and run the workflow again")
    return manifest


def _run_row(
    config: StudyConfig,
    paths: StudyPaths,
    key: RunKey,
    manifest: dict[str, Any] | None,
    tunings: Mapping[TuningKey, Tuning],
) -> dict[str, Any]:
    folder = RunFolder(paths.run(key))
    row = {**dict.fromkeys(_ABOUT, ""), **dict.fromkeys((*_RESULTS, "diverged_step", "last_finite_loss")), **vars(key)}
    row |= {"folder": folder.path.relative_to(paths.records).as_posix()}
    try:
        if not is_there(folder.summary):
            return row | {"status": "missing", "problem": _why_missing(folder)}
        summary = _checked_summary(folder, key, config)
        if manifest is not None:
            tuning = tunings[selection_key(config, key)]
            _check_current(summary, config, key, manifest=manifest, tuning=tuning)
        return row | _results(summary)
    except (RefusedError, ConfigError) as error:
        return row | {"status": "refused", "problem": str(error)}
    except OSError as error:
        return row | {"status": "refused", "problem": why_unreadable(error)}
    except (KeyError, TypeError, AttributeError):
        return row | {"status": "refused", "problem": f"summary.json: not what a training writes; {_REMEDY}"}


def _why_missing(folder: RunFolder) -> str:
    if is_there(folder.failure):
        return "failed: see failure.json"
    return "begun, not finished" if is_there(folder.metrics) else "not begun"


def _checked_summary(folder: RunFolder, key: RunKey, config: StudyConfig) -> dict[str, Any]:
    """The summary, if it belongs to this folder's run.yaml, metrics.jsonl and name."""
    if (summary := read_json(folder.summary)) is None:
        raise RefusedError(f"summary.json: not a JSON object; {_REMEDY}")
    wanted = {"study": config.study, **vars(key), "trial": None}
    labels = summary.get("labels")
    if labels != wanted:
        raise RefusedError(f"summary.json: it is the summary of {_short(labels)}, not of {_short(wanted)}")
    recorded = _recorded_hash(folder.run_file)
    if recorded is None or summary.get("hash") != recorded:
        raise RefusedError(
            f"summary.json: its hash {summary.get('hash')} is not {recorded}, that of run.yaml; {_REMEDY}"
        )
    if edited := edited_records(folder, summary):
        raise RefusedError(f"summary.json: {edited.name} next to it is not the one it was made with; {_REMEDY}")
    if fault := altered(folder, summary):
        raise RefusedError(f"summary.json: edited: {fault}; {_REMEDY}")
    return summary


_REMEDY = "delete the summary and run the workflow again"


def _recorded_hash(path: Path) -> str | None:
    """The hash that run.yaml opens with: it is not parsed whole, which would take most of the time."""
    if not is_there(path):
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        found = re.fullmatch(r"hash: '?([0-9a-f]{16})'?\s*", file.readline())
    return found and found[1]


def _check_current(
    summary: dict[str, Any], config: StudyConfig, key: RunKey, *, manifest: dict[str, Any], tuning: Tuning
) -> None:
    """Refuse a run whose run.yaml the configuration, the data and the selected rates of today would not write."""
    if tuning.status in ("missing", "refused"):
        raise RefusedError(f"summary.json: the rates it was given are unknown: {tuning.problem}")
    recorded = (summary.get("spec") or {}).get("training", {})
    expected = resolve(
        run_request(config, key),
        manifest=manifest,
        selected=dict(tuning.selected),
        data="",
        auto=recorded_auto(recorded),
    )
    if summary["hash"] != expected.spec.hash:
        raise RefusedError(
            "summary.json: stale: the configuration, the data or the selected rates have changed since; run the "
            "workflow again"
        )


def _results(summary: dict[str, Any]) -> dict[str, Any]:
    status = summary.get("status")
    if status == "completed" and _finite(summary.get("val_loss")) and _finite(summary.get("val_ppl")):
        if summary["val_ppl"] < 1 or not math.isclose(math.log(summary["val_ppl"]), summary["val_loss"], abs_tol=1e-6):
            raise RefusedError(f"summary.json: val_ppl {summary['val_ppl']} is not exp(val_loss); {_REMEDY}")
        numbers = {field: _number(summary.get(field), kind) for field, kind in _RESULTS.items()}
        return {"status": "completed", "hash": summary["hash"], **numbers}
    if status not in ("completed", "diverged"):
        raise RefusedError(f"summary.json: status {status!r} is neither completed nor diverged; {_REMEDY}")
    about = summary.get("diverged") or {"reason": "completed, but its validation loss is not finite"}
    return {
        "status": "diverged",
        "hash": summary["hash"],
        "diverged_step": _number(about.get("step"), "Int64"),
        "last_finite_loss": _number(about.get("last_finite_loss"), "float64"),
        "problem": str(about.get("reason", "")),
    }


def _number(value: object, kind: str) -> object:
    """A number that its column can hold, or None."""
    if value is None or (_finite(value) and (kind == "float64" or isinstance(value, int))):
        return value
    raise RefusedError(f"summary.json: {value!r} is no {'number' if kind == 'float64' else 'count'}; {_REMEDY}")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(labels: object) -> str:
    return "/".join(str(v) for v in labels.values() if v is not None) if isinstance(labels, dict) else repr(labels)
