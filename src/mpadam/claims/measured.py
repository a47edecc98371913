"""Claims that the diagnostics answer: what updates can do, without a trained model.

Matrices of the matrix fitting are its seeds. What is computed without chance (which weights an update moves, rounding
to nearest) has no seeds and needs none.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mpadam.analysis.style import optimizer_styles
from mpadam.claims.data import Fit, FitComparison, Fitted
from mpadam.claims.samples import ClaimCell
from mpadam.presence import is_there

# --- matrix fitting --------------------------------------------------------------------------------------------------


def fit_samples(metric: Fit, folder: Path) -> list[ClaimCell]:
    """A cell a comparison; ln(error) of the rival less that of the subject, paired by matrix."""
    path = folder / "matrix-fitting" / "results.json"
    if not is_there(path):
        return [absent(_fit_name(one), one.task) for one in metric.comparisons]
    with _written_by_diagnose(path.parent):
        kept = json.loads(path.read_text(encoding="utf-8"))["choices"]
        choices = {(c["method"], c["rates"]): c["tasks"] for c in kept}
        return [_fit_sample(one, choices, _flat_sweeps(path.parent / "sweeps.csv")) for one in metric.comparisons]


@contextmanager
def _written_by_diagnose(folder: Path) -> Iterator[None]:
    """What goes wrong in here becomes a ValueError that names the folder and what to do."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder}: not what `mpadam diagnose` writes ({type(error).__name__}: {error}): delete it and let the "
            "workflow, or `mpadam diagnose`, make it again"
        ) from error


def _fit_sample(one: FitComparison, choices: dict[tuple[str, str], Any], flat: set[tuple[str, str]]) -> ClaimCell:
    better = choices.get((one.better.method, one.better.rates), {}).get(one.task)
    rivals = [(c, choices.get((c.method, c.rates), {}).get(one.task)) for c in one.than]
    known = [(fitted, rival) for fitted, rival in rivals if rival is not None]
    if better is None or len(known) < len(rivals):
        return absent(_fit_name(one), one.task)
    rival, than = min(known, key=lambda pair: float(np.log(pair[1]["final_errors"]).mean()))
    pairs = zip(than["final_errors"], better["final_errors"], strict=True)
    values = {seed: math.log(a) - math.log(b) for seed, (a, b) in enumerate(pairs)}
    edges = [
        f"{fitted.method}: {rate}"
        for fitted, found in ((one.better, better), (rival, than))
        if (one.task, fitted.method) not in flat
        for rate in found["not_bracketed"]
    ]
    return ClaimCell(_fit_name(one), one.task, values, tuple(values), edges=tuple(edges))


def _fit_name(one: FitComparison) -> str:
    return f"{_fitted_name([one.better])} over {_fitted_name(one.than)}"


def _fitted_name(fitted: Sequence[Fitted]) -> str:
    labels = optimizer_styles(one.method for one in fitted)
    names = " or ".join(labels[one.method].label for one in fitted)
    return f"{names} ({'best rates' if fitted[0].rates == 'best per task' else 'one rate for all'})"


def _flat_sweeps(path: Path) -> set[tuple[str, str]]:
    """(task, method) whose error is the same at every rate: an edge of such a range hides nothing."""
    spans = pd.read_csv(path).groupby(["task", "method"])["error"].agg(["min", "max"])
    flat = spans[spans["max"] <= spans["min"] * (1 + 1e-6)]
    return {(str(task), str(method)) for task, method in flat.index}


# --- without chance --------------------------------------------------------------------------------------------------

#: ticks of Table 1: (optimizer, column of capabilities.csv, whether it must be empty, what that says)
_TICKS = (
    ("adamw", "lost_from", False, "additive updates are lost at large |w|"),
    ("madam", "updates_to_leave_zero", True, "multiplicative updates cannot leave zero"),
    ("madam", "updates_to_change_sign", True, "multiplicative updates cannot change a sign"),
    ("madam", "lost_from", True, "multiplicative updates are not lost at large |w|"),
    ("m-plus-adam", "updates_to_leave_zero", False, "M+Adam leaves zero"),
    ("m-plus-adam", "updates_to_change_sign", False, "M+Adam changes a sign"),
    ("m-plus-adam", "lost_from", True, "M+Adam is not lost at large |w|"),
)


def _ticks(frame: pd.DataFrame) -> Iterator[ClaimCell]:
    """The share of Table 1's ticks that were measured, by format; nearest rounding."""
    for fmt, rows in frame[frame["write_back"] == "nearest"].groupby("format", sort=False):
        found = {str(row["optimizer"]): row for row in rows.to_dict("records")}
        if all(optimizer in found for optimizer, *_ in _TICKS):
            failed = [says for name, column, empty, says in _TICKS if not _ticked(found[name], column, empty)]
            value = 1 - len(failed) / len(_TICKS)
            flags = tuple(f"not so: {says}" for says in failed)
            yield ClaimCell("ticks of Table 1", str(fmt), {0: value}, (0,), flags=flags, exact=True)


def _ticked(row: dict[Any, Any], column: str, empty: bool) -> bool:
    """Whether an update does, or does not, what a tick says; an update that is lost everywhere is lost at large |w|."""
    if column == "lost_from" and row["lost_everywhere"]:
        return not empty
    return bool(pd.isna(row[column])) == empty


#: |w| above which the clip of the default form does not bind at the reference rate: eta_m / r_max = 5.3e-3
_UNCLIPPED = 0.0107


def _slopes(frame: pd.DataFrame) -> Iterator[ClaimCell]:
    """How the multiplicative step grows with |w|: slope of ln(step) over ln|w|, 0 not at all, 1 in proportion."""
    frame = frame[(frame["optimizer"] == "m-plus-adam") & (frame["part"] == "multiplicative")]
    for fmt, rows in frame[frame["magnitude"] >= _UNCLIPPED].groupby("format", sort=False):
        moved = rows[rows["mean_step"] > 0]
        if len(moved) < 2:
            yield absent("M+Adam's multiplicative step", f"{fmt}, |w| above 0.01")
            continue
        slope = float(np.polyfit(np.log(moved["magnitude"]), np.log(moved["mean_step"]), 1)[0])
        yield ClaimCell("M+Adam's multiplicative step", f"{fmt}, |w| above 0.01", {0: slope}, (0,), exact=True)


#: measurement -> file of the diagnostics, the cells that it gives, contrast and place where the file is not there
_MEASUREMENTS: dict[str, tuple[str, Callable[[pd.DataFrame], Iterator[ClaimCell]], str, str]] = {
    "capabilities": ("capabilities/capabilities.csv", _ticks, "ticks of Table 1", "every format"),
    "growth": ("survival-grid/survival.csv", _slopes, "M+Adam's multiplicative step", "|w| above 0.01"),
}


def measured(measurement: str, folder: Path) -> list[ClaimCell]:
    """folder: of the diagnostics. Raises ValueError where the file is not what a diagnostic writes."""
    name, cells, contrast, where = _MEASUREMENTS[measurement]
    path = folder / name
    if not is_there(path):
        return [absent(contrast, where)]
    with _written_by_diagnose(path.parent):
        return list(cells(pd.read_csv(path)))


def absent(contrast: str, where: str) -> ClaimCell:
    return ClaimCell(contrast, where, {}, ())
