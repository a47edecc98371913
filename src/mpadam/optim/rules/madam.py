"""Madam: the multiplicative branch alone, which cannot leave zero (docs/algorithm.md, (16))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mpadam.optim.branches import relative_step
from mpadam.optim.card import BETA2, CLIP, DECAY_MULT, EPS, LR_MULT, TAU, Constants, Rates, Rule, State, Step

if TYPE_CHECKING:
    from torch import Tensor


def madam(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """docs/algorithm.md, (16): w + w u_m - eta_m wd w.

    w, g: float32 [*shape]; state: v_e of that shape, or v_r of Apollo-E.
    """
    u_m, new_state = relative_step(w, g, state, c, r, projection=projection)
    return Step(w.new_zeros(()), w * u_m, -r.decay * w), new_state


MADAM = Rule(
    name="madam",
    title="Madam",
    summary="""The multiplicative branch alone. Its only rate is multiplicative, and called `lr`.

    multiplicative_form: the form of the branch; "relative", the default, is nearest to Madam as it was published
        (w * (1 -+ lr * g / rms(g))) [our reading].
    """,
    step=madam,
    states=(),
    branches=("multiplicative",),
    hyperparameters=(
        replace(LR_MULT, name="lr", meaning="the only rate, multiplicative: eta_m"),
        BETA2,
        EPS,
        replace(DECAY_MULT, name="weight_decay", meaning="decoupled decay, times lr"),
        TAU,
        CLIP,
    ),
    forms={
        "": "relative",
        "normalized": "normalized_rho",
        "rho-tensor": "normalized_rho_tensor",
        "unnormalized": "unnormalized_rho",
    },
)
