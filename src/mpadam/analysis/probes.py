"""Looks at updates along training: the probes.jsonl of every run of a study as one table.

    model, budget, regime, optimizer, seed, step     whose look, and when
    quantity, branch, role, bin, value, count        what it saw

| quantity | branch | role | bin | value | count |
|---|---|---|---|---|---|
| survival | additive, multiplicative, both | embedding, ... | exponent, or zero | share that survives | intended |
| weights | | embedding, ... | the same | share of the role's weights | weights |
| cosine, at_least, at_most | additive, ln, log2 | all, embedding, ... | | see mpadam.probes.descent | |
| undefined | multiplicative | all, embedding, ... | | weights without a logarithm | |
| loss_before, loss_after, loss_fell | | | | nats a token; 1 or 0 | |
| stale | v, v_e, v_r | | | share of due entries that stay | due |

`bin` e holds 2**e <= |w| < 2**(e + 1). A run that diverged has the looks before it did.
What a run has not looked at is not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mpadam.analysis.collect import Collected
from mpadam.probes.outputs import FILE
from mpadam.study.load import ConfigError
from mpadam.training.folder import read_json
from mpadam.training.metrics import read_metrics

COLUMNS = (
    *("model", "budget", "regime", "optimizer", "seed", "step"),
    *("quantity", "branch", "role", "bin", "value", "count"),
)
Row = tuple[str, str, str, str, float, int | None]  # from quantity on
_SEPARATE = ("bins", "weights")  # of a role's survival: the rest are branches


@dataclass(frozen=True)
class Looks:
    """table: `COLUMNS`, and what a figure groups by: planned `steps` of the run, `beta2` and `state_dtype`."""

    table: pd.DataFrame

    def of(self, *quantities: str) -> pd.DataFrame:
        """The rows of these quantities."""
        return self.table[self.table["quantity"].isin(quantities)]

    def to_csv(self) -> str:
        return self.table[list(COLUMNS)].to_csv(index=False, lineterminator="\n")


def read_looks(collected: Collected) -> Looks:
    """The looks of every run that has ended, in the grid's order."""
    ended = collected.runs[collected.runs["status"].isin(("completed", "diverged"))]
    rows = []
    for run in ended.to_dict("records"):
        folder = collected.paths.root / str(run["folder"])
        if (folder / FILE).exists():
            key = tuple(run[column] for column in COLUMNS[:5])
            about = _about(folder)
            rows += [(*key, step, *row, *about) for step, row in _rows_of(folder / FILE)]
    table = pd.DataFrame(rows, columns=[*COLUMNS, "steps", "beta2", "state_dtype"])
    return Looks(table.astype({"value": "float64", "count": "Int64"}))


def _about(folder: Path) -> tuple[int, float, str]:
    """Planned steps, beta2 and dtype of the states of a run."""
    summary = read_json(folder / "summary.json") or {}
    spec = summary["spec"]
    return spec["training"]["steps"], summary["hyperparameters"]["beta2"], spec["optimizer"]["state_dtype"]


def _rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        lines = read_metrics(path)
        for line in lines:
            for row in _rows(line):
                yield line["step"], row
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{path}: not what a training writes ({error}): delete the run's folder, and run again"
        ) from error


def _rows(line: dict[str, Any]) -> Iterator[Row]:
    """A line of probes.jsonl as rows."""
    yield from _losses(line["loss"])
    for role, record in line["survival"].items():
        yield from _survival(role, record)
    for role, record in line["descent"].items():
        for branch, measures in record.items():
            if branch == "undefined":
                yield "undefined", "multiplicative", role, "", float(measures), None
                continue
            for quantity, value in measures.items():
                yield quantity, branch, role, "", _float(value), None
    for state, counts in line["staleness"].items():
        yield "stale", state, "", "", _share(counts["stale"], counts["due"]), counts["due"]


def _losses(loss: dict[str, float | None]) -> Iterator[Row]:
    before, after = _float(loss["before"]), _float(loss["after"])
    yield "loss_before", "", "", "", before, None
    yield "loss_after", "", "", "", after, None
    yield "loss_fell", "", "", "", float(after < before), 1  # a loss that is not finite has not fallen


def _survival(role: str, record: dict[str, Any]) -> Iterator[Row]:
    bins = [str(b) for b in record["bins"]]
    total = sum(record["weights"])
    for at, count in zip(bins, record["weights"], strict=True):
        yield "weights", "", role, at, count / total, count
    for branch in (key for key in record if key not in _SEPARATE):
        counts = zip(bins, record[branch]["intended"], record[branch]["survived"], strict=True)
        for at, intended, survived in counts:
            if intended:
                yield "survival", branch, role, at, survived / intended, intended


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _float(value: float | None) -> float:
    return math.nan if value is None else value
