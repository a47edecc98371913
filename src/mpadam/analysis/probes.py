"""Probes of updates along training: the probes.jsonl of every run of a study as one table.

    model, budget, regime, optimizer, seed, step     whose probe, and when
    quantity, branch, role, bin, value, count        what it saw

| quantity | branch | role | bin | value | count |
|---|---|---|---|---|---|
| survival | additive, multiplicative, both | embedding, ... | exponent | share that survives | intended |
| weights | | embedding, ... | exponent | share of the role's weights | weights |
| cosine, at_least, at_most | additive, ln, log2 | all, embedding, ... | | see mpadam.probes.descent | probes |
| undefined | multiplicative | all, embedding, ... | | weights without a logarithm | probes |
| loss_before, loss_after | | | | nats per token, of the same batch | probes |
| loss_fell | | | | share of probes; absent where the rates were zero | probes |
| stale | v, v_e, v_r | | | share of due entries that stay | due |
| layer_survival | additive, multiplicative, both | attention, mlp | layer | share that survives | intended |
| layer_size | weight, additive, multiplicative, both | attention, mlp | layer | RMS of weight or step | weights |
| step_size | additive, multiplicative, both | attention, mlp | exponent | mean of the step's size | weights |
| octave | additive, multiplicative, both | attention, mlp | octave | share of the steps | steps |

The last four are there if probes record layers (`training.probe_layers`, see mpadam.probes.layers). Octave e holds
steps of 2**e to 2**(e + 1) spacings of the stored format. Bin e holds 2**e <= |w| < 2**(e + 1), and -inf what is zero.
A run that diverged has the probes before it did. What a run has not probed is not there; a run of more than PARTS
probes is told in so many parts (see `in_parts`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mpadam.analysis.collect import Collected
from mpadam.presence import is_there
from mpadam.study.load import ConfigError
from mpadam.study.run_folder import RunFolder, read_json, read_metrics

_KEY = ("model", "budget", "regime", "optimizer", "seed")
_WORDS = ("quantity", "branch", "role", "bin")
_ABOUT = ("steps", "beta2", "state_dtype")
COLUMNS = (*_KEY, "step", *_WORDS, "value", "count")
PARTS = 10  # of a run that has more probes than that: the table of the paper's study would be too large to open
Row = tuple[str, str, str, str, float, int]  # from quantity on
_DISTRIBUTIONS = ("weights", "octave")  # quantities whose values are shares of the sum of their counts
_SEPARATE = ("bins", "weights")  # of a role's survival: the rest are branches


@dataclass(frozen=True)
class Probes:
    """table: `COLUMNS`, and what a figure groups by: planned `steps` of the run, `beta2` and `state_dtype`."""

    table: pd.DataFrame

    def of(self, *quantities: str) -> pd.DataFrame:
        rows = self.table[self.table["quantity"].isin(quantities)]
        return rows.astype({column: "str" for column in rows if rows[column].dtype == "category"})

    def to_csv(self) -> str:
        return self.table[list(COLUMNS)].to_csv(index=False, lineterminator="\n")


def read_probes(collected: Collected) -> Probes:
    """The probes of every run that has ended, in the grid's order."""
    ended = collected.runs[collected.runs["status"].isin(("completed", "diverged"))]
    frames = [_empty()]
    for run in ended.to_dict("records"):
        folder = collected.paths.records / str(run["folder"])
        if is_there(RunFolder(folder).probes):
            key = {column: run[column] for column in _KEY}
            frames.append(in_parts(_frame(RunFolder(folder).probes)).assign(**key, **_about(folder)))
    table = pd.concat(frames, ignore_index=True)[[*COLUMNS, *_ABOUT]]
    return Probes(table.astype(dict.fromkeys((*_KEY[:1], *_KEY[2:4], *_WORDS, "state_dtype"), "category")))


def _empty() -> pd.DataFrame:
    """No probe, with the type of every column."""
    kinds = {**dict.fromkeys((*_KEY, *_WORDS, "state_dtype"), "str"), **dict.fromkeys(("value", "beta2"), "float64")}
    whole = dict.fromkeys(("budget", "seed", "step", "count", "steps"), "int64")
    return pd.DataFrame(columns=[*COLUMNS, *_ABOUT]).astype(kinds | whole)


def _frame(path: Path) -> pd.DataFrame:
    rows = [(step, *row) for step, row in _rows_of(path)]
    return pd.DataFrame(rows, columns=["step", *_WORDS, "value", "count"]).astype({"value": "float64"})


def in_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """A run of more than PARTS probes in so many equal parts: counts summed, values averaged by what each counted (so a
    share is that of the sums), the step that of the last probe of the part."""
    steps = sorted(rows["step"].unique())
    if len(steps) <= PARTS:
        return rows
    part = {step: k * PARTS // len(steps) for k, step in enumerate(steps)}
    last = {part[step]: step for step in steps}
    known = rows["value"].notna()
    weighed = rows.assign(
        step=rows["step"].map(part).map(last),
        sum=(rows["value"] * rows["count"]).where(known, 0.0),
        weight=rows["count"].where(known, 0),
    )
    keys = ["step", *_WORDS]
    merged = weighed.groupby(keys, sort=False)[["sum", "weight", "count"]].sum().reset_index()
    value = merged["sum"] / merged["weight"].where(merged["weight"] > 0)
    held = merged["quantity"].isin(_DISTRIBUTIONS)  # a bin that a probe found empty has no row of it
    whole = merged[held].groupby(keys[:-1], sort=False)["count"].transform("sum")
    value[held] = merged.loc[held, "count"] / whole
    return merged.assign(value=value)[["step", *_WORDS, "value", "count"]]


def largest_bins(weights: pd.DataFrame, probe: list[str], share: float) -> pd.DataFrame:
    """For each probe (its columns `probe`) the highest bins of |w| that together hold at least this share of its
    weights.

    weights: rows of the quantity of that name.  Returns the columns `probe` and bin.
    """
    held = weights.groupby([*probe, "bin"], sort=False)["count"].sum().reset_index()
    held = held.assign(exponent=pd.to_numeric(held["bin"])).sort_values("exponent", ascending=False, kind="stable")
    counts = held.groupby(probe)["count"]
    above = counts.cumsum() - held["count"]
    return held.loc[above < share * counts.transform("sum"), [*probe, "bin"]]


def _about(folder: Path) -> dict[str, Any]:
    summary = read_json(folder / "summary.json") or {}
    spec, beta2 = summary["spec"], summary["hyperparameters"]["beta2"]
    return {"steps": spec["training"]["steps"], "beta2": beta2, "state_dtype": spec["optimizer"]["state_dtype"]}


def _rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        lines = read_metrics(path)
        for line in lines:
            for row in _rows(line):
                yield line["step"], row
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: not what a training writes ({error}): delete the run's folder, and run again"
        ) from error


def _rows(line: dict[str, Any]) -> Iterator[Row]:
    yield from _losses(line["loss"], moved=_moved(line))
    for role, record in line["survival"].items():
        yield from _survival(role, record)
    for role, record in line["descent"].items():
        if "undefined" in record:
            yield "undefined", "multiplicative", role, "", float(record["undefined"]), 1
        for branch, measures in _branches(record).items():
            for quantity, value in measures.items():
                yield quantity, branch, role, "", _float(value), 1
    for state, counts in line["staleness"].items():
        yield "stale", state, "", "", counts["stale"] / counts["due"] if counts["due"] else math.nan, counts["due"]
    for record in line.get("layers", ()):
        yield from _layer(record)
    for role, record in line.get("sizes", {}).items():
        yield from _sizes(role, record)


def _moved(line: dict[str, Any]) -> bool:
    """Whether the update was one: at a rate of zero, where a schedule may end, no branch has a direction."""
    return any(measures["cosine"] is not None for measures in _branches(line["descent"]["all"]).values())


def _branches(record: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    return {branch: measures for branch, measures in record.items() if branch != "undefined"}


def _losses(loss: dict[str, float | None], *, moved: bool) -> Iterator[Row]:
    before, after = _float(loss["before"]), _float(loss["after"])
    yield "loss_before", "", "", "", before, 1
    yield "loss_after", "", "", "", after, 1
    if moved:
        yield "loss_fell", "", "", "", float(after < before), 1  # a loss that is not finite has not fallen


def _survival(role: str, record: dict[str, Any]) -> Iterator[Row]:
    bins = _bins(record)
    total = sum(record["weights"])
    for at, count in zip(bins, record["weights"], strict=True):
        yield "weights", "", role, at, count / total, count
    for branch in (key for key in record if key not in _SEPARATE):
        counts = zip(bins, record[branch]["intended"], record[branch]["survived"], strict=True)
        for at, intended, survived in counts:
            if intended:
                yield "survival", branch, role, at, survived / intended, intended


def _bins(record: dict[str, Any]) -> list[str]:
    return ["-inf" if b == "zero" else str(b) for b in record["bins"]]


def _layer(record: dict[str, Any]) -> Iterator[Row]:
    role, layer, weights = record["role"], str(record["layer"]), record["weights"]
    yield "layer_size", "weight", role, layer, record["rms"], weights
    for branch in (key for key in record if isinstance(record[key], dict)):
        counts = record[branch]
        yield "layer_size", branch, role, layer, counts["rms"], weights
        if counts["intended"]:
            yield "layer_survival", branch, role, layer, counts["survived"] / counts["intended"], counts["intended"]


def _sizes(role: str, record: dict[str, Any]) -> Iterator[Row]:
    for branch in (key for key in record if key not in _SEPARATE):
        for at, step, weights in zip(_bins(record), record[branch]["step"], record["weights"], strict=True):
            yield "step_size", branch, role, at, step, weights
        counts = record[branch]["counts"]
        for octave, count in zip(record[branch]["octaves"], counts, strict=True):
            yield "octave", branch, role, str(octave), count / sum(counts), count


def _float(value: float | None) -> float:
    return math.nan if value is None else value
