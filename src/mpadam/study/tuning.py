"""Choosing the rates of a tuning from its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Trial = Mapping[str, Any]


def select(trials: Sequence[Trial]) -> dict[str, Any]:
    """The content of selected.yaml.

    trials: each with `values` (searched hyper-parameters), `status`, `val_loss` (on the selection half), `hash`.
    The completed trial with the lowest validation loss is chosen; where every trial diverged, the one with the lowest
    rates, and `status` says so. `bracketed` tells, for each searched value, whether smaller and larger ones were tried:
    a best value at the edge of its range may not be the best there is.
    """
    assert trials, "a tuning has at least one trial"
    completed = [trial for trial in trials if trial["status"] == "completed" and math.isfinite(trial["val_loss"])]
    if completed:
        best = min(completed, key=lambda trial: (trial["val_loss"], sorted(trial["values"].items())))
    else:
        best = min(trials, key=lambda trial: sorted(trial["values"].items()))
    tried = {key: [trial["values"][key] for trial in trials] for key in best["values"]}
    return {
        "status": "selected" if completed else "all trials diverged",
        "best": trials.index(best),
        "values": dict(best["values"]),
        "bracketed": {key: min(tried[key]) < value < max(tried[key]) for key, value in best["values"].items()},
        "trials": [dict(trial) for trial in trials],
    }
