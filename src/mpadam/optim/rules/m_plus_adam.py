"""M+Adam: an additive and a multiplicative branch (docs/algorithm.md, (1) to (14))."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpadam.optim.branches import adam, relative_step
from mpadam.optim.card import (
    BETA1,
    BETA2,
    BLOCK_SCALE,
    CLIP,
    DECAY,
    DECAY_MULT,
    EPS,
    LR,
    LR_MULT,
    TAU,
    Constants,
    Rates,
    Rule,
    State,
    Step,
)

if TYPE_CHECKING:
    from torch import Tensor


def m_plus_adam(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """docs/algorithm.md, (10): w + w u_m + u_a - (eta_a wd + eta_m wd_mult) w

    w, g: float32 [*shape]; state: m, v, and v_e of that shape, or v_r of Apollo-E.
    """
    u_a, _, additive_state = adam(g, state, c, r)
    u_m, multiplicative_state = relative_step(w, g, state, c, r, projection=projection)
    return Step(u_a, w * u_m, -r.decay * w), additive_state | multiplicative_state


M_PLUS_ADAM = Rule(
    name="m-plus-adam",
    title="MPlusAdam",
    summary="""M+Adam (docs/algorithm.md, (10)): an Adam branch and a multiplicative branch, w + w u_m + u_a - decay.

    lr, lr_mult: additive and multiplicative rate (`--lr` and `--m_adam_lr_e` of the reference; never swap them).
    weight_decay, weight_decay_mult: decays, each times its own rate.
    tau, max_relative_step: least rho, and the clip of u_m (None: Algorithm 1, no clip).
    multiplicative_form: "normalized_rho" | "normalized_rho_tensor" | "relative" | "unnormalized_rho".
    block_scale_exponent: each block of 256 weights of a row has lr_mult times (its scale / the tensor's typical one) to
        this power; 0, the default, is the paper's rule, others are an ablation of it [our reading].
    second_moment: "full", or "apollo_e" for v_e in rank `apollo_rank`, projected again every `apollo_refresh` updates;
        `apollo_scope` "projections" (groups with that role, and groups without a role) or "all_2d".
    tie_lr_mult: True multiplies lr_mult by lr / (lr at construction), so that one scheduler moves both; False does not;
        None does not either, and warns if lr moves and lr_mult does not.
    """,
    step=m_plus_adam,
    states=("m", "v"),
    branches=("additive", "multiplicative"),
    hyperparameters=(LR, BETA1, BETA2, EPS, DECAY, LR_MULT, DECAY_MULT, TAU, CLIP, BLOCK_SCALE),
    forms={
        "": "normalized_rho",
        "relative": "relative",
        "rho-tensor": "normalized_rho_tensor",
        "unnormalized": "unnormalized_rho",
    },
)
