"""What runs saw when they looked at their updates, as a number a run, for claims about it.

`probes.csv` is made by `mpadam probes`; `mpadam.analysis.probes` says what its rows hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from mpadam.analysis.cells import CellKey
from mpadam.analysis.claims.cells import Source
from mpadam.analysis.claims.data import Probe
from mpadam.analysis.claims.samples import Number, Numbers
from mpadam.analysis.collect import Collected
from mpadam.study.load import ConfigError

_RUN = ["model", "budget", "regime", "optimizer", "seed"]
COLUMNS = (*_RUN, "step", "quantity", "branch", "role", "bin", "value", "count")
_WEIGHTS = "weights"  # the quantity that says how many weights a bin holds


def read_probes(path: Path) -> pd.DataFrame:
    """The looks of all runs; none where the file is not there. Raises ConfigError where a column is missing."""
    if not path.exists():
        return pd.DataFrame(columns=list(COLUMNS))
    text = dict.fromkeys(("model", "regime", "optimizer", "quantity", "branch", "role", "bin"), "str")
    frame = pd.read_csv(path, keep_default_na=False, na_values={"value": [""], "count": [""]}, dtype=text)
    if missing := [column for column in COLUMNS if column not in frame]:
        raise ConfigError(f"{path}: no column {missing[0]!r}; make it again with  mpadam probes")
    return frame


def probe_numbers(metric: Probe, probes: pd.DataFrame, collected: Collected) -> Numbers:
    """The mean over looks of every run that completed, each look weighted by what it counted, where it counts."""
    if probes.empty:
        return {}
    done = collected.runs[collected.runs["status"] == "completed"]
    folders = {tuple(run[column] for column in _RUN): str(run["folder"]) for run in done.to_dict("records")}
    branches = {term.branch for contrast in metric.contrasts for term in contrast.terms}
    found = {}
    for branch in branches:
        for (model, budget, regime, optimizer, seed), value in _means(_chosen(metric, branch, probes)):
            if (folder := folders.get((model, budget, regime, optimizer, seed))) is not None:
                found[Source(CellKey(model, budget, regime, optimizer), branch), seed] = Number(value, folder)
    return found


def _means(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, int, str, str, int], float]]:
    for labels, group in rows.groupby(_RUN, sort=False):
        weights = group["count"].fillna(1).to_numpy(dtype=float)
        yield labels, float(np.average(group["value"].to_numpy(dtype=float), weights=weights))  # type: ignore[misc]


def _chosen(metric: Probe, branch: str | None, probes: pd.DataFrame) -> pd.DataFrame:
    """Rows with a number, of the quantity, the branch, and of the roles and magnitudes that the claim names."""
    if metric.roles is not None:
        probes = probes[probes["role"].isin(metric.roles)]
    wanted = (probes["quantity"] == metric.quantity) & probes["value"].notna() & (probes["count"].fillna(1) > 0)
    rows = probes[wanted if branch is None else wanted & (probes["branch"] == branch)]
    if metric.largest is None:
        return rows
    top = _largest(probes[probes["quantity"] == _WEIGHTS], metric.largest)
    return rows.merge(top, on=[*_RUN, "step", "bin"])


def _largest(weights: pd.DataFrame, share: float) -> pd.DataFrame:
    """For each look the highest bins of |w| that together hold at least this share of the weights."""
    look = [*_RUN, "step"]
    held = weights.groupby([*look, "bin"], sort=False)["count"].sum().reset_index()
    held["exponent"] = pd.to_numeric(held["bin"], errors="coerce").fillna(-np.inf)  # the bin of zero is the lowest
    held = held.sort_values("exponent", ascending=False, kind="stable")
    counts = held.groupby(look)["count"]
    above = counts.cumsum() - held["count"]
    return held.loc[above < share * counts.transform("sum"), [*look, "bin"]]
