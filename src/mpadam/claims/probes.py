"""What runs saw when they looked at their updates, as a number a run, for claims about it.

`mpadam.analysis.probes` says what the looks hold.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from mpadam.analysis.cells import CellKey
from mpadam.analysis.collect import Collected
from mpadam.analysis.probes import Looks, largest_bins
from mpadam.claims.cells import Source
from mpadam.claims.data import Probe
from mpadam.claims.samples import ClaimCell, Number, Numbers

_RUN = ["model", "budget", "regime", "optimizer", "seed"]
_WEIGHTS = "weights"  # the quantity that says how many weights a bin holds


def probe_numbers(metric: Probe, looks: Looks, collected: Collected) -> Numbers:
    """The mean over looks of every run that completed, each look weighted by what it counted."""
    done = collected.runs[collected.runs["status"] == "completed"]
    folders = {tuple(run[column] for column in _RUN): str(run["folder"]) for run in done.to_dict("records")}
    branches = {term.branch for contrast in metric.contrasts for term in contrast.terms}
    found = {}
    for branch in branches:
        for (model, budget, regime, optimizer, seed), value in _means(_chosen(metric, branch, looks)):
            if (folder := folders.get((model, budget, regime, optimizer, seed))) is not None:
                found[Source(CellKey(model, budget, regime, optimizer), branch), seed] = Number(value, folder)
    return found


def counted(metric: Probe, sample: ClaimCell, looks: Looks) -> tuple[int, int] | None:
    """In how many looks of how many it held, where the quantity is whether the loss fell: all seeds of the cell."""
    if metric.quantity != "loss_fell" or sample.cell is None:
        return None
    rows = _chosen(metric, None, looks)
    here = (rows[["model", "budget", "regime", "optimizer"]] == list(vars(sample.cell).values())).all(axis=1)
    own = rows[here & rows["seed"].isin(list(sample.values))]
    return round(float((own["value"].astype(float) * own["count"]).sum())), int(own["count"].sum())


def _means(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, int, str, str, int], float]]:
    for labels, group in rows.groupby(_RUN, sort=False):
        value = np.average(group["value"].to_numpy(dtype=float), weights=group["count"].to_numpy(dtype=float))
        yield labels, float(value)  # type: ignore[misc]  # groupby types its keys as Hashable


def _chosen(metric: Probe, branch: str | None, looks: Looks) -> pd.DataFrame:
    """Rows with a number, of the quantity, the branch, and of the roles and magnitudes that the claim names."""
    rows = _of_roles(looks.of(metric.quantity), metric)
    wanted = rows["value"].notna() & (rows["count"] > 0)
    rows = rows[wanted if branch is None else wanted & (rows["branch"] == branch)]
    if metric.largest is None or rows.empty:
        return rows
    top = largest_bins(_of_roles(looks.of(_WEIGHTS), metric), [*_RUN, "step"], metric.largest)
    return rows.merge(top, on=[*_RUN, "step", "bin"])


def _of_roles(rows: pd.DataFrame, metric: Probe) -> pd.DataFrame:
    return rows if metric.roles is None else rows[rows["role"].isin(metric.roles)]
