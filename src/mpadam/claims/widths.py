"""How wide the region of good learning rates is, from the trials of the tuning (the paper's Figure 6)."""

import math
from collections.abc import Sequence

from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.tunings import Tuning
from mpadam.claims.data import Rates
from mpadam.claims.samples import ClaimCell
from mpadam.study.grid import TuningKey
from mpadam.study.tuning import trial_loss


def width_samples(metric: Rates, collected: Collected) -> list[ClaimCell]:
    """A cell a (model, regime) in which both were tuned: octaves of one less octaves of the other, for the one seed."""
    tunings = {tuning.key: tuning for tuning in collected.tunings if tuning.status == "selected"}
    labels = optimizer_styles([metric.better, metric.than])
    name = f"{labels[metric.better].label} less {labels[metric.than].label}"
    seed = collected.config.tuning.seed
    found = []
    for model, regime in dict.fromkeys((key.model, key.regime) for key in tunings):
        pair = [tunings.get(TuningKey(model, regime, entry)) for entry in (metric.better, metric.than)]
        octaves = [width(tuning, metric.tolerance) for tuning in pair if tuning is not None]
        if len(octaves) == 2:
            ends = [entry for entry, (_, cut) in zip((metric.better, metric.than), octaves, strict=True) if cut]
            told = tuple(f"the region of {entry} reaches the end of the trials" for entry in ends)
            values = {seed: octaves[0][0] - octaves[1][0]}
            found.append(ClaimCell(name, f"{model} {regime}", values, (seed,), model, regime=regime, flags=told))
    return found


def width(tuning: Tuning, tolerance: float) -> tuple[float, bool]:
    """Octaves of lr around the best trial whose loss stays within `tolerance` of it, the other rates at their best, and
    whether the region reaches an end of what was tried."""
    assert tuning.best is not None
    best = tuning.trials[tuning.best]
    others = {name: value for name, value in best["values"].items() if name != "lr"}
    alike = [t for t in tuning.trials if {n: v for n, v in t["values"].items() if n != "lr"} == others]
    ladder = sorted((t["values"]["lr"], trial_loss(t)) for t in alike if "lr" in t["values"])
    if not ladder:
        return 0.0, True
    good = [loss <= trial_loss(best) + tolerance for _, loss in ladder]
    middle = next(index for index, (rate, _) in enumerate(ladder) if rate == best["values"]["lr"])
    low, high = _reach(good, middle, -1), _reach(good, middle, 1)
    return math.log2(ladder[high][0] / ladder[low][0]), low == 0 or high == len(ladder) - 1


def _reach(good: Sequence[bool], start: int, step: int) -> int:
    """The last index in that direction up to which all are good."""
    while 0 <= start + step < len(good) and good[start + step]:
        start += step
    return start
