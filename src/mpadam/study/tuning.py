"""Choosing the rates of a tuning from its trials, and which further trials the choice asks for.

Equal tuning (`tuning.extend`) wants one factor between neighbouring values in the searches of all optimizers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Trial = Mapping[str, Any]
Values = dict[str, float]
Search = Mapping[str, Sequence[float]]
TOLERANCE = 0.1  # people write 1, 3, 10 and mean one factor


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
    neighbours = {key: [_neighbour(trials, best, key, side) for side in (-1, 1)] for key in best["values"]}
    return {
        key: all(trial is not None and trial_loss(trial) > trial_loss(best) for trial in both)
        for key, both in neighbours.items()
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


# --- equal tuning ----------------------------------------------------------------------------------------------------


def ends(search: Search, extend: int) -> list[tuple[str, float]]:
    """(hyper-parameter, value) of what `extend` further trials may come to, at both ends of each list."""
    found = []
    for key, candidates in search.items():
        reach = (common_factor(candidates) or 1.0) ** extend
        found += [(key, min(candidates) / reach), (key, max(candidates) * reach)]
    return found


def check_searches(searches: Mapping[str, Search], trials: int) -> None:
    """Refuse searches (of optimizer entries) whose trials would not be equally many, or not equally far apart."""
    first = ""
    for entry, search in searches.items():
        points = math.prod(map(len, search.values()))
        if points != trials:
            raise ValueError(
                f"optimizers.{entry}.search: has {points} points, and with tuning.extend every optimizer lists "
                f"tuning.trials = {trials}: list as many, or write  extend: 0"
            )
        for key, candidates in search.items():
            where, factor = f"optimizers.{entry}.search.{key}", common_factor(candidates)
            if factor is None:
                example = [float(f"{max(candidates) * 2.0**-k:.3g}") for k in (2, 1, 0)]
                raise ValueError(
                    f"{where}: {candidates} has not one factor between neighbouring values, which tuning.extend takes "
                    f"over; list at least two values so, e.g.  {key}: {example}"
                )
            if not first:
                first, common = where, factor
            if not math.isclose(factor, common, rel_tol=TOLERANCE):
                raise ValueError(
                    f"{where}: {candidates} has the factor {factor:.3g} between neighbouring values, {first} has "
                    f"{common:.3g}: tuning.extend asks for one factor in all searches; change one, or write  extend: 0"
                )


def common_factor(candidates: Sequence[float]) -> float | None:
    """The factor between neighbouring values of a list; None where there is not one."""
    ordered = sorted(candidates)
    if len(ordered) < 2 or ordered[0] <= 0:
        return None
    mean = float((ordered[-1] / ordered[0]) ** (1 / (len(ordered) - 1)))
    same = all(math.isclose(larger / smaller, mean, rel_tol=TOLERANCE) for smaller, larger in pairwise(ordered))
    return mean if same else None
