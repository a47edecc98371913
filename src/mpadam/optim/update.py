"""One update of one parameter as a pure function over tensors.

    read -> rule -> round -> new tensors

`mpadam.optim.compiled` gives the whole of it to torch.compile, so a compiled step reads and writes each tensor once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mpadam.optim.rules import RULES, Constants, Rates, Rule, State, Step
from mpadam.optim.store import Draw, StorePlan, next_weight, read_weight, refreshed_copy


@dataclass(frozen=True)
class Plan:
    """All that is fixed about the update of a parameter: rule x write-back x format and its constants."""

    rule: str
    constants: Constants
    store: StorePlan

    @property
    def elementwise(self) -> bool:
        """Whether every element is updated without a look at the others."""
        c = self.constants
        whole = c.second_moment == "apollo_e" or c.multiplicative_form == "normalized_rho_tensor"
        whole = whole or c.modulates
        return self.store.format.dtype is not None and not whole


class Operands(NamedTuple):
    """The tensors of one update.

    copy: the compute copy, or None where the parameter is the weight.  stored: the tensors of the store.
    moments: the states of the rule.  grad: any floating dtype.
    bits: random bits, or what they are drawn from.  projection: of Apollo-E.  Both None where not needed.
    """

    copy: Tensor | None
    stored: dict[str, Tensor]
    moments: State
    grad: Tensor
    bits: Tensor | Draw | None
    projection: Tensor | None


class Update(NamedTuple):
    """What one update computed: the weight before it, the step before rounding, moments (float32), new store."""

    before: Tensor
    step: Step
    moments: State
    stored: dict[str, Tensor]


class Observation(NamedTuple):
    """One update as diagnostics see it, all float32 copies: update number, stored weight before and after, gradient,
    step and moments before rounding. `after != before` is where the update survived rounding."""

    t: int
    before: Tensor
    after: Tensor
    grad: Tensor
    step: Step
    moments: State


def advance(plan: Plan, x: Operands, rates: Rates, rule: Rule | None = None) -> Update:
    """The update as a pure function; float32 until the store rounds. `rule`: another one than the plan's."""
    w = read_weight(plan.store, x.stored, x.grad.shape)
    moments = {name: tensor.to(torch.float32) for name, tensor in x.moments.items()}
    rule = rule or RULES[plan.rule]
    step, new_moments = rule(w, x.grad.to(torch.float32), moments, plan.constants, rates, projection=x.projection)
    bits = x.bits.bits(w.shape, w.device) if isinstance(x.bits, Draw) else x.bits
    return Update(w, step, new_moments, next_weight(plan.store, x.stored, w, step.delta, bits))


def apply(plan: Plan, x: Operands, new: Update) -> None:
    """Put the results in their places; moments round to nearest in their own dtype."""
    for name, tensor in new.moments.items():
        x.moments[name].copy_(tensor)
    for name, tensor in new.stored.items():
        x.stored[name].copy_(tensor)
    if x.copy is not None:
        x.copy.copy_(refreshed_copy(plan.store, new.stored, x.copy))


def update(plan: Plan, x: Operands, rates: Rates) -> None:
    """`advance`, then `apply`."""
    apply(plan, x, advance(plan, x, rates))


def observed_update(plan: Plan, x: Operands, rates: Rates, t: int) -> Observation:
    """`update` as number `t`, with what an observer wants to know of it."""
    new = advance(plan, x, rates)
    before = new.before.clone()  # it may be the very tensor that `apply` writes to
    apply(plan, x, new)
    after = read_weight(plan.store, x.stored, before.shape).clone()
    return Observation(t, before, after, x.grad.to(torch.float32), new.step, new.moments)
