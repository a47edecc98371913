"""Equal tuning: one factor between neighbouring values in the searches of all optimizers (`tuning.extend`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

TOLERANCE = 0.1  # people write 1, 3, 10 and mean one factor
Search = Mapping[str, Sequence[float]]


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
