"""The additive twin: M+Adam with its second branch made additive, the control of the claim that the gain is
multiplicative (docs/algorithm.md, (17) and (18))."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpadam.optim.branches import adam, clip
from mpadam.optim.card import (
    BETA1,
    BETA2,
    CLIP,
    DECAY,
    DECAY_MULT,
    EPS,
    LR,
    LR_MULT,
    Constants,
    Rates,
    Rule,
    State,
    Step,
)

if TYPE_CHECKING:
    from torch import Tensor


def additive_twin(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """docs/algorithm.md, (18): w + u_a + clip(-eta_m g / (sqrt(v_hat) + eps), r_max |w|) - (eta_a wd + eta_m wd_mult) w

    w, g: float32 [*shape]; state: m, v of that shape. The second branch stands where others are multiplicative.
    """
    u_a, denominator, new_state = adam(g, state, c, r)
    second = -r.multiplicative * g / denominator
    bound = None if c.max_relative_step is None else c.max_relative_step * w.abs()
    return Step(u_a, clip(second, bound), -r.decay * w), new_state


ADDITIVE_TWIN = Rule(
    name="additive-twin",
    title="AdditiveTwin",
    summary="M+Adam with its second branch made additive: the control of the claim that the gain is multiplicative.",
    step=additive_twin,
    states=("m", "v"),
    branches=("additive", "multiplicative"),
    hyperparameters=(LR, BETA1, BETA2, EPS, DECAY, LR_MULT, DECAY_MULT, CLIP),
)
