"""The update rules: pure float32 functions, one line an equation of paper.md section 2.

    rule(w, g, state, constants, rates, projection) -> (Step, new state)

w, g and the state tensors are float32; nothing is changed in place and nothing is rounded below float32: that is the
weight store's work. Rates come as floats or as 0-d tensors, so that a compiled step need not be compiled again.
The new state is not rounded either: the step of update t uses its own moments in float32, and what is kept for
update t + 1 is rounded to the state's dtype afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mpadam.numerics.blocks import from_blocks, to_blocks
from mpadam.optim.apollo import channel_scale, projected_shape

LN2 = math.log(2.0)
Scalar = float | Tensor
State = dict[str, Tensor]


class Step(NamedTuple):
    """What is to be added to w, by branch; each term broadcasts against w (a branch that a rule lacks is a 0-d zero).

    additive: u_a.  multiplicative: w * u_m.  decay: -(eta_a wd + eta_m wd_mult) w.
    """

    additive: Tensor
    multiplicative: Tensor
    decay: Tensor

    @property
    def delta(self) -> Tensor:
        """w_new - w before rounding."""
        return self.additive + self.multiplicative + self.decay


class Decay(NamedTuple):
    """beta and 1 - beta; a compiled graph takes both, for beta in float32 no longer gives the other."""

    kept: Scalar
    taken: Scalar


@dataclass(frozen=True)
class Constants:
    """Hyper-parameters of a rule that do not depend on t. Words, and whether a number is there at all, are part of a
    compiled graph (`form`); the numbers, which a scheduler may move, are its arguments."""

    beta1: float | Decay = 0.87
    beta2: float | Decay = 0.98
    eps: Scalar = 1e-20
    tau: Scalar = 1e-8
    max_relative_step: Scalar | None = 0.75
    multiplicative_form: str = "normalized_rho"
    block_scale_exponent: Scalar = 0.0
    second_moment: str = "full"
    apollo_rank: int = 4

    @property
    def decay1(self) -> Decay:
        return self.beta1 if isinstance(self.beta1, Decay) else Decay(self.beta1, 1.0 - self.beta1)

    @property
    def decay2(self) -> Decay:
        return self.beta2 if isinstance(self.beta2, Decay) else Decay(self.beta2, 1.0 - self.beta2)

    @property
    def modulates(self) -> bool:
        """Whether the multiplicative rate depends on the block scale."""
        return isinstance(self.block_scale_exponent, Tensor) or self.block_scale_exponent != 0

    def form(self) -> Constants:
        """These constants with each number replaced by one that stands for all."""
        clip = None if self.max_relative_step is None else 1.0
        numbers = {"beta1": 0.5, "beta2": 0.5, "eps": 1.0, "tau": 1.0, "max_relative_step": clip}
        return replace(self, **numbers, block_scale_exponent=float(self.modulates))  # type: ignore[arg-type]

    def numbers(self) -> tuple[float, ...]:
        """The numbers that `form` leaves out, for `with_numbers`."""
        clip = 0.0 if self.max_relative_step is None else self.max_relative_step
        rest = (self.eps, self.tau, clip, self.block_scale_exponent)
        return tuple(map(float, (*self.decay1, *self.decay2, *rest)))

    def with_numbers(self, numbers: Sequence[Tensor]) -> Constants:
        """A form with the `numbers` of constants as 0-d tensors in their places."""
        beta1, taken1, beta2, taken2, eps, tau, clip, exponent = numbers
        return Constants(
            Decay(beta1, taken1),
            Decay(beta2, taken2),
            eps,
            tau,
            None if self.max_relative_step is None else clip,
            self.multiplicative_form,
            exponent if self.modulates else 0.0,
            self.second_moment,
            self.apollo_rank,
        )


BLOCK = 256
"""Weights of a row that share a scale in the reference's FP8 format, and so a multiplicative rate."""


class Rates(NamedTuple):
    """Hyper-parameters at update t: what changes from step to step.

    additive: eta_a / (1 - b1^t): the bias correction of m is folded in, which saves a rounding and a pass.
    multiplicative: eta_m.
    decay: eta_a wd + eta_m wd_mult.
    correction: 1 - b2^t, the bias correction of the second moments.
    """

    additive: Scalar
    multiplicative: Scalar
    decay: Scalar
    correction: Scalar

    def tensors(self, device: torch.device | None = None) -> Rates:
        """As 0-d float32 tensors."""
        return Rates(*scalar_tensor(self, device).unbind())


def scalar_tensor(numbers: Sequence[Scalar], device: torch.device | None = None) -> Tensor:
    """The numbers in one float32 tensor; on the CPU, whatever the default device is."""
    return torch.tensor(numbers, dtype=torch.float32, device=device or "cpu")


class Rule(Protocol):
    def __call__(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None
    ) -> tuple[Step, State]: ...


def _moving_average(average: Tensor, value: Tensor, decay: Decay) -> Tensor:
    """beta * average + (1 - beta) * value"""
    return decay.kept * average + decay.taken * value


def _clip(x: Tensor, bound: float | Tensor | None) -> Tensor:
    """Into [-bound, bound]; NaN stays NaN. No bound, no clip (Algorithm 1)."""
    if bound is None:
        return x
    return torch.clamp(x, -bound, bound) if isinstance(bound, float) else torch.minimum(torch.maximum(x, -bound), bound)


def _scaled(direction: Tensor, rate: Scalar) -> Tensor:
    """rate * direction, but zero where the rate is zero: a gradient so large that w g or its square overflows must not
    make 0 * inf of a branch that is switched off."""
    if isinstance(rate, Tensor):
        return torch.where(rate == 0, torch.zeros_like(direction), rate * direction)
    return rate * direction if rate else torch.zeros_like(direction)


def _adam(g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates) -> tuple[Tensor, Tensor, State]:
    """u_a = -eta_a m_hat / (sqrt(v_hat) + eps), its denominator, and m and v."""
    m = _moving_average(state["m"], g, c.decay1)
    v = _moving_average(state["v"], g * g, c.decay2)
    denominator = (v / r.correction).sqrt() + c.eps
    return -r.additive * m / denominator, denominator, {"m": m, "v": v}


def _rho(w: Tensor, c: Constants) -> Tensor | None:
    """The divisor of the relative step, elementwise or one number a tensor; None for the form without."""
    if c.multiplicative_form == "relative":
        return None
    size = w.square().mean().sqrt() if c.multiplicative_form == "normalized_rho_tensor" else w.abs()
    return size.clamp(min=c.tau)


def _exponent_direction(
    g_e: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, projection: Tensor | None
) -> tuple[Tensor, State]:
    """The exponent gradient, divided by the root of its second moment where the form has one."""
    if c.multiplicative_form == "unnormalized_rho":
        return g_e, {}
    if projection is not None:
        scale, v_r = channel_scale(g_e, projection, state["v_r"], c, r)
        return scale * g_e, {"v_r": v_r}
    v_e = _moving_average(state["v_e"], g_e * g_e, c.decay2)
    return g_e / ((v_e / r.correction).sqrt() + c.eps), {"v_e": v_e}


def _block_modulation(w: Tensor, exponent: Scalar) -> Tensor:
    """What eta_m is multiplied by: (s / s_typical)^exponent, s the block scale of a weight, s_typical the geometric
    mean over the tensor [our reading]. A scale is the largest magnitude of a block up to a constant, which cancels.
    A block of zeros keeps the rate as it is.
    """
    blocks = to_blocks(w, (1, BLOCK))
    largest = blocks.abs().amax(dim=(2, 4), keepdim=True)
    alive = largest > 0
    logs = torch.where(alive, largest, torch.ones_like(largest)).log()
    typical = logs.sum() / alive.sum().clamp(min=1)
    factors = torch.where(alive, (exponent * (logs - typical)).exp(), torch.ones_like(largest))
    return from_blocks(factors.expand_as(blocks), w.shape)


def relative_step(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Tensor, State]:
    """u_m, the step relative to the weight, in [-r_max, r_max]."""
    g_e = LN2 * w * g
    direction, new_state = _exponent_direction(g_e, state, c, r, projection)
    proposal = _scaled(direction, -r.multiplicative)
    if c.modulates:
        proposal = proposal * _block_modulation(w, c.block_scale_exponent)
    rho = _rho(w, c)
    return _clip(proposal if rho is None else proposal / rho, c.max_relative_step), new_state


def adamw(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """w_new = w + u_a - eta_a wd w"""
    u_a, _, new_state = _adam(g, state, c, r)
    return Step(u_a, w.new_zeros(()), -r.decay * w), new_state


def madam(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """w_new = w + w u_m - eta_m wd w: the multiplicative branch alone, which cannot leave zero."""
    u_m, new_state = relative_step(w, g, state, c, r, projection=projection)
    return Step(w.new_zeros(()), w * u_m, -r.decay * w), new_state


def m_plus_adam(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """w_new = w + w u_m + u_a - (eta_a wd + eta_m wd_mult) w"""
    u_a, _, additive_state = _adam(g, state, c, r)
    u_m, multiplicative_state = relative_step(w, g, state, c, r, projection=projection)
    return Step(u_a, w * u_m, -r.decay * w), additive_state | multiplicative_state


def additive_twin(
    w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
) -> tuple[Step, State]:
    """M+Adam's control: the second branch is additive, -eta_m g / (sqrt(v_hat) + eps), clipped to r_max |w|; no v_e."""
    u_a, denominator, new_state = _adam(g, state, c, r)
    second = -r.multiplicative * g / denominator
    bound = None if c.max_relative_step is None else c.max_relative_step * w.abs()
    return Step(u_a, _clip(second, bound), -r.decay * w), new_state


RULES: Mapping[str, Rule] = {
    "adamw": adamw,
    "madam": madam,
    "m-plus-adam": m_plus_adam,
    "additive-twin": additive_twin,
}
_ADDITIVE_STATES: Mapping[str, tuple[str, ...]] = {
    "adamw": ("m", "v"),
    "madam": (),
    "m-plus-adam": ("m", "v"),
    "additive-twin": ("m", "v"),
}
_MULTIPLICATIVE = ("madam", "m-plus-adam")


def state_shapes(rule: str, shape: torch.Size, c: Constants) -> dict[str, torch.Size]:
    """Name -> shape of the states that `rule` keeps for a weight of `shape`; all start at zero."""
    shapes = dict.fromkeys(_ADDITIVE_STATES[rule], shape)
    if rule in _MULTIPLICATIVE and c.multiplicative_form != "unnormalized_rho":
        if c.second_moment == "apollo_e":
            shapes["v_r"] = projected_shape(shape, c.apollo_rank)
        else:
            shapes["v_e"] = shape
    return shapes
