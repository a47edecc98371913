"""Lion: the sign of an interpolation between momentum and gradient (Chen et al., arXiv 2302.06675)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpadam.optim.branches import moving_average
from mpadam.optim.card import BETA2, DECAY, LR, Constants, Hyperparameter, Rates, Rule, State, Step

if TYPE_CHECKING:
    from torch import Tensor


def lion(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """w_new = w - eta sign(k m + (1 - k) g) - eta wd w.  w, g: float32 [*shape]; state: m of that shape."""
    k = c.number("interpolation")
    u = -r.additive * (k * state["m"] + (1.0 - k) * g).sign()
    return Step(u, w.new_zeros(()), -r.decay * w), {"m": moving_average(state["m"], g, c.decay2)}


LION = Rule(
    name="lion",
    title="Lion",
    summary="Lion with a decoupled decay.",
    step=lion,
    states=("m",),
    branches=("additive",),
    hyperparameters=(LR, BETA2, Hyperparameter("interpolation", 0.9, "share of the momentum", high=1.0), DECAY),
)
