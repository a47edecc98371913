"""Choosing the rates of a tuning from its trials, and which further trials the choice asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Trial = Mapping[str, Any]
Values = dict[str, float]


def trial_loss(trial: Trial) -> float:
    """Validation loss of a trial in nats per token; infinity where it diverged."""
    done = trial["status"] == "completed" and math.isfinite(trial["val_loss"])
    return float(trial["val_loss"]) if done else math.inf


def select(trials: Sequence[Trial], allowance: int = 0) -> dict[str, Any]:
    """The content of selected.yaml.

    trials: each with `values` (searched hyper-parameters), `status`, `val_loss` (on the selection half), `hash`;
    further ones (`with_further`) also with `why` they were made. allowance: how many of those there may be.
    The completed trial with the lowest validation loss is chosen; where every trial diverged, the one with the lowest
    rates, and `status` says so.
    """
    assert trials, "a tuning has at least one trial"
    best = _best(trials)
    further = {"allowed": allowance, "made": sum("why" in trial for trial in trials)}
    return {
        "status": "selected" if trial_loss(trials[best]) < math.inf else "all trials diverged",
        "best": best,
        "values": dict(trials[best]["values"]),
        "bracketed": bracketed(trials, trials[best]),
        **({"further": further} if allowance else {}),
        "trials": [dict(trial) for trial in trials],
    }


def bracketed(trials: Sequence[Trial], best: Trial) -> dict[str, bool]:
    """For each searched value of the best trial: whether its neighbours on both sides were tried, and are worse.

    A neighbour is the trial with the next smaller or next larger value, all other searched values being equal.
    """
    beside = {key: [_neighbour(trials, best, key, side) for side in (-1, 1)] for key in best["values"]}
    return {
        key: all(trial is not None and trial_loss(trial) > trial_loss(best) for trial in both)
        for key, both in beside.items()
    }


def with_further(
    trials: Sequence[Trial], allowance: int, made: Callable[[int, Values], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The trials of a tuning and, one after another, at most `allowance` further ones that its best trial asks for.

    made: gives the trial of that number with these values.
    """
    found = [dict(trial) for trial in trials]
    while len(found) < len(trials) + allowance and (asked := next_trial(found)):
        values, why = asked
        found.append({**made(len(found), values), "why": why})
    return found


def next_trial(trials: Sequence[Trial]) -> tuple[Values, str] | None:
    """The values of the trial that is to be made next, and why; None where the best one lacks no neighbour.

    The first neighbour that the best trial lacks has the next value that was tried elsewhere, or, beyond the end, one
    that differs by the factor between the two values nearest to that end. Where all trials diverged, every value is
    lowered by that factor at once.
    """
    best = trials[_best(trials)]
    values: Values = dict(best["values"])
    if trial_loss(best) == math.inf:
        lowest = {key: min(trial["values"][key] for trial in trials) for key in values}
        return {key: _next(trials, key, value, -1) for key, value in lowest.items()}, "all trials before it diverged"
    for key, value in values.items():
        for side, word in ((-1, "smaller"), (1, "larger")):
            if _neighbour(trials, best, key, side) is None:
                why = f"the best trial, number {trials.index(best)}, had no neighbour with a {word} {key}"
                return {**values, key: _next(trials, key, value, side)}, why
    return None


def _best(trials: Sequence[Trial]) -> int:
    return min(range(len(trials)), key=lambda k: (trial_loss(trials[k]), sorted(trials[k]["values"].items())))


def _neighbour(trials: Sequence[Trial], best: Trial, key: str, side: int) -> Trial | None:
    """The trial with the next value of `key` on one side (-1: smaller, 1: larger) and all others equal, if any."""
    own = best["values"]
    alike = [t for t in trials if {**t["values"], key: own[key]} == own and side * (t["values"][key] - own[key]) > 0]
    return min(alike, key=lambda trial: abs(trial["values"][key] - own[key]), default=None)


def _next(trials: Sequence[Trial], key: str, value: float, side: int) -> float:
    """The next value of `key` that any trial tried on one side of `value`, or a new one beyond the end."""
    tried = sorted({trial["values"][key] for trial in trials}, reverse=side < 0)
    after = [other for other in tried if side * (other - value) > 0]
    return after[0] if after else float(f"{tried[-1] * tried[-1] / tried[-2]:.6g}")
