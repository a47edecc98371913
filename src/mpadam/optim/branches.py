"""The two branches that rules are made of, one line per equation of docs/algorithm.md. Pure float32 functions.

Rates come as floats or as 0-d tensors, so that a compiled step need not be compiled again. The new state is not
rounded: the step of update t uses its own moments in float32, and what is kept for update t + 1 is rounded to the
state's dtype afterwards. torch is imported where a function needs more than the methods of its tensors: cards are read
without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpadam.optim.card import Constants, Decay, Rates, Scalar, State

if TYPE_CHECKING:
    from torch import Tensor

LN2 = math.log(2.0)
BLOCK = 256
"""Weights of a row that share a scale in the reference's FP8 format, and so a multiplicative rate."""


def moving_average(average: Tensor, value: Tensor, decay: Decay) -> Tensor:
    """beta * average + (1 - beta) * value; both float32 of one shape."""
    return decay.kept * average + decay.taken * value


def clip(x: Tensor, bound: float | Tensor | None) -> Tensor:
    """float32 `x` into [-bound, bound]; NaN stays NaN. No bound, no clip (Algorithm 1)."""
    if bound is None:
        return x
    return x.clamp(-bound, bound) if isinstance(bound, float) else x.maximum(-bound).minimum(bound)


def adam(g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates) -> tuple[Tensor, Tensor, State]:
    """docs/algorithm.md, (6): u_a = -eta_a m_hat / (sqrt(v_hat) + eps), its denominator, and m and v of (2) and (3).

    All float32, shape of `g`.
    """
    m = moving_average(state["m"], g, c.decay1)
    v = moving_average(state["v"], g * g, c.decay2)
    denominator = (v / r.correction).sqrt() + c.eps
    return -r.additive * m / denominator, denominator, {"m": m, "v": v}


def fed_back(state: State, error: Tensor, c: Constants, r: Rates) -> State:
    """ECO: m + alpha e, alpha = ((1 - b1^t) / eta_a) (1 - 1/b1) (sqrt(v_hat) + eps): docs/algorithm.md, (36).

    The coming updates move the weight by b1 alpha e, b1^2 alpha e, ... times their rates: by e in all, where the rate
    stays. A rate of zero gives nothing back, and so does a second moment that overflowed: alpha is not finite there.
    state: m and v; these and `error` are float32 [*shape].
    """
    denominator = (state["v"] / r.correction).sqrt() + c.eps
    injection = -(c.decay1.taken / c.decay1.kept) * (error / r.additive) * denominator
    return state | {"m": state["m"] + injection.nan_to_num(0.0, 0.0, 0.0)}


def relative_step(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Tensor, State]:
    """docs/algorithm.md, (8): u_m, the step relative to the weight, in [-r_max, r_max].

    w, g: float32 [*shape], as u_m.  state: v_e [*shape], or v_r with a projection [rank, smaller dimension].
    """
    g_e = LN2 * w * g
    direction, new_state = _exponent_direction(g_e, state, c, r, projection)
    proposal = _scaled(direction, -r.multiplicative)
    if c.modulates:
        proposal = proposal * _block_modulation(w, c.block_scale_exponent)
    rho = _rho(w, c)
    return clip(proposal if rho is None else proposal / rho, c.max_relative_step), new_state


def _exponent_direction(
    g_e: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, projection: Tensor | None
) -> tuple[Tensor, State]:
    """The exponent gradient, divided by the root of its second moment where the form has one: r / -eta_m of
    docs/algorithm.md, (7), (13) and (23)."""
    if c.multiplicative_form == "unnormalized_rho":
        return g_e, {}
    if projection is not None:
        from mpadam.optim.apollo import channel_scale

        scale, v_r = channel_scale(g_e, projection, state["v_r"], c, r)
        return scale * g_e, {"v_r": v_r}
    v_e = moving_average(state["v_e"], g_e * g_e, c.decay2)
    return g_e / ((v_e / r.correction).sqrt() + c.eps), {"v_e": v_e}


def _scaled(direction: Tensor, rate: Scalar) -> Tensor:
    """rate * direction, but zero where the rate is zero: a gradient so large that w g or its square overflows must not
    make 0 * inf of a branch that is switched off."""
    if isinstance(rate, (int, float)):
        return rate * direction if rate else direction.new_zeros(direction.shape)
    return (rate * direction).where(rate != 0, 0.0)


def _rho(w: Tensor, c: Constants) -> Tensor | None:
    """docs/algorithm.md, (9) and (11): float32 [*shape] elementwise, or 0-d; None for the form without."""
    if c.multiplicative_form == "relative":
        return None
    size = w.square().mean().sqrt() if c.multiplicative_form == "normalized_rho_tensor" else w.abs()
    return size.clamp(min=c.tau)


def _block_modulation(w: Tensor, exponent: Scalar) -> Tensor:
    """What eta_m is multiplied by: (s / s_typical)^exponent (docs/algorithm.md, (14)).

    A scale is the largest magnitude of a block up to a constant, which cancels. A block of zeros keeps the rate as it
    is. float32, shape of `w`.
    """
    from mpadam.numerics.blocks import from_blocks, to_blocks

    blocks = to_blocks(w, (1, BLOCK))
    largest = blocks.abs().amax(dim=(2, 4), keepdim=True)
    alive = largest > 0
    logs = largest.where(alive, 1.0).log()
    typical = logs.sum() / alive.sum().clamp(min=1)
    factors = (exponent * (logs - typical)).exp().where(alive, 1.0)
    return from_blocks(factors.expand_as(blocks), w.shape)
