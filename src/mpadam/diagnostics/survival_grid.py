"""Figure 1: which parts of one update change the stored weight, at which |w|, by format; rounding to nearest.

produce(SurvivalGrid(), Path("results/smoke"))
"""

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from mpadam.diagnostics.records import write_csv, write_results
from mpadam.diagnostics.scene import Scene, reference_step, scene
from mpadam.numerics.formats import get_format
from mpadam.optim.store import StorePlan
from mpadam.study.diagnostics import SurvivalGrid

_SPAN, _BISECTIONS = 2.0**20, 24  # of the search for the least step that survives


@dataclass(frozen=True)
class Part:
    """An update, or a branch of one, that is put before the weights.

    optimizer: whose rule.  branch: "additive", "multiplicative", or "delta" for the sum of both.
    """

    optimizer: str
    branch: str


#: additive steps, the multiplicative branch alone in its forms, and both branches together
PARTS = (
    Part("adamw", "delta"),
    Part("m-plus-adam", "additive"),
    Part("m-plus-adam", "multiplicative"),
    Part("m-plus-adam-rho-tensor", "multiplicative"),
    Part("m-plus-adam-relative", "multiplicative"),
    Part("m-plus-adam-unnormalized", "multiplicative"),
    Part("m-plus-adam", "delta"),
    Part("m-plus-adam-rho-tensor", "delta"),
    Part("m-plus-adam-relative", "delta"),
    Part("m-plus-adam-unnormalized", "delta"),
    Part("additive-twin", "delta"),
)


@dataclass(frozen=True)
class Survival:
    """One format.

    magnitudes: centres of the bins of |w|, (bins,).
    least: of the smallest steps that still change a weight, the least and the greatest in each bin, (2, bins).
    sizes: mean |step| of each part before rounding, (parts, bins).
    shares: share of the weights of a bin that each part changes, (parts, bins).
    zeros: share of the weights of a bin that the format stores as zero, (bins,).
    """

    fmt: str
    magnitudes: Tensor
    least: Tensor
    sizes: Tensor
    shares: Tensor
    zeros: Tensor


def measure(fmt: str, options: SurvivalGrid) -> Survival:
    """Put every part of an update before weights of every magnitude, half of them with gradients of either sign."""
    generator = torch.Generator().manual_seed(0)
    drawn = _magnitudes(options, generator)
    placed = scene(drawn.flatten(), get_format(fmt), deviation=options.deviation)
    stored = _Stored(StorePlan(get_format(fmt)), placed)
    weights = placed.at_probes(stored.weights)[:, 0]
    gradient = options.gradient * torch.where(torch.rand(weights.shape, generator=generator) < 0.5, -1.0, 1.0)
    steps = [getattr(reference_step(part.optimizer, weights, gradient, options), part.branch) for part in PARTS]
    binned = [step.view(drawn.shape) for step in steps]
    return Survival(
        fmt,
        magnitudes=drawn.log().mean(1).exp(),
        least=torch.stack(torch.aminmax(_least_step(stored, -gradient.sign()).view(drawn.shape), dim=1)),
        sizes=torch.stack([step.abs().mean(1) for step in binned]),
        shares=torch.stack([stored.changes(step).view(drawn.shape).double().mean(1) for step in steps]),
        zeros=(weights == 0).view(drawn.shape).double().mean(1),
    )


def _magnitudes(options: SurvivalGrid, generator: torch.Generator) -> Tensor:
    """(bins, per_bin), log-uniform within each bin."""
    low, high = map(math.log, options.magnitudes)
    places = torch.arange(options.bins)[:, None] + torch.rand(options.bins, options.per_bin, generator=generator)
    return (low + (high - low) * places / options.bins).exp()


class _Stored:
    def __init__(self, plan: StorePlan, placed: Scene) -> None:
        self.plan, self.placed = plan, placed
        self.tensors = plan.initial(placed.weights)
        self.weights = plan.read(self.tensors, placed.weights.shape)

    def changes(self, delta: Tensor) -> Tensor:
        """Whether writing `delta` [probes] changes the stored weight of each probe, bool [probes]; nothing is kept."""
        written = self.plan.write(self.tensors, self.weights, self.placed.spread(delta), None)
        after = self.plan.read(written.tensors, self.weights.shape)
        return (self.placed.at_probes(after) != self.placed.at_probes(self.weights))[:, 0]


def _least_step(stored: _Stored, sign: Tensor) -> Tensor:
    """The smallest step of this sign that changes each stored weight, by bisection of its logarithm; (probes,)."""
    weights = stored.placed.at_probes(stored.weights)[:, 0]
    high = weights.abs().clamp(min=float(stored.placed.weights.abs().median())) * 2
    low = high / _SPAN
    for _ in range(_BISECTIONS):
        middle = (low * high).sqrt()
        survives = stored.changes(sign * middle)
        low, high = torch.where(survives, low, middle), torch.where(survives, middle, high)
    return high


def produce(options: SurvivalGrid, root: Path) -> None:
    """Write diagnostics/survival-grid/ under `root`: survival.csv, and the options in results.json."""
    folder = root / "diagnostics" / "survival-grid"
    found = tidy([measure(fmt, options) for fmt in options.formats])
    write_results(folder, options)
    write_csv(found, folder / "survival.csv")


def tidy(found: list[Survival]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "format": survival.fmt,
                "optimizer": part.optimizer,
                "part": "both" if part.branch == "delta" else part.branch,
                "magnitude": survival.magnitudes[bin_].item(),
                "mean_step": survival.sizes[row, bin_].item(),
                "share_changed": survival.shares[row, bin_].item(),
                "least_step_min": survival.least[0, bin_].item(),
                "least_step_max": survival.least[1, bin_].item(),
                "share_stored_as_zero": survival.zeros[bin_].item(),
            }
            for survival in found
            for row, part in enumerate(PARTS)
            for bin_ in range(len(survival.magnitudes))
        ]
    )
