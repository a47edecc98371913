"""AdamW: the additive branch alone (docs/algorithm.md, (15))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mpadam.optim.branches import adam, fed_back
from mpadam.optim.card import BETA1, BETA2, DECAY, EPS, LR, Constants, Rates, Rule, State, Step

if TYPE_CHECKING:
    from torch import Tensor


def adamw(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """docs/algorithm.md, (15): w + u_a - eta_a wd w.  w, g: float32 [*shape]; state: m, v of that shape."""
    u_a, _, new_state = adam(g, state, c, r)
    return Step(u_a, w.new_zeros(()), -r.decay * w), new_state


ADAMW = Rule(
    name="adamw",
    title="AdamW",
    summary="AdamW with a decoupled decay `lr * weight_decay * w`.",
    step=adamw,
    states=("m", "v"),
    branches=("additive",),
    hyperparameters=(replace(LR, default=1e-3), BETA1, BETA2, EPS, DECAY),
    feedback=fed_back,
)
