"""One update of one parameter as a pure function over tensors, eager or compiled.

    read -> rule -> round -> new tensors

`torch.compile` sees the whole of it, so a compiled step reads and writes each tensor once. Rates are 0-d tensors
there: as numbers they would be compiled into the code, and every step of a schedule would compile again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mpadam.optim.rules import RULES, Constants, Rates, Rule, State, Step
from mpadam.optim.store import StorePlan, next_weight, read_weight, refreshed_copy


@dataclass(frozen=True)
class Plan:
    """All that is fixed about the update of a parameter: rule x write-back x format and its constants."""

    rule: str
    constants: Constants
    store: StorePlan


class Operands(NamedTuple):
    """The tensors of one update.

    copy: the compute copy, or None where the parameter is the weight.  stored: the tensors of the store.
    moments: the states of the rule.  grad: any floating dtype.  bits, projection: None where not needed.
    """

    copy: Tensor | None
    stored: dict[str, Tensor]
    moments: State
    grad: Tensor
    bits: Tensor | None
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
    """The update as a pure function; float32 until the store rounds. `rule` may be the compiled one of the plan."""
    w = read_weight(plan.store, x.stored, x.grad.shape)
    moments = {name: tensor.to(torch.float32) for name, tensor in x.moments.items()}
    rule = rule or RULES[plan.rule]
    step, new_moments = rule(w, x.grad.to(torch.float32), moments, plan.constants, rates, projection=x.projection)
    return Update(w, step, new_moments, next_weight(plan.store, x.stored, w, step.delta, x.bits))


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


def compiled_update(plan: Plan, x: Operands, rates: Rates) -> None:
    """`update` through torch.compile: one graph for each plan and shape, none for a new rate.

    On a CPU only the rule is compiled where weights are stored as codes: torch 2.13's CPU code generator splits the
    loop over a row into blocks and forgets the elements of a short last one.
    """
    tensors = rates.tensors()
    if plan.store.format.dtype is None and x.grad.device.type == "cpu":
        apply(plan, x, advance(plan, x, tensors, _compiled(plan, rule_only=True)))
    else:
        _compiled(plan, rule_only=False)(x, tensors)


@cache
def _compiled(plan: Plan, *, rule_only: bool) -> Callable[..., Any]:
    """The compiled rule or update of a plan; a plan has its own limit of shapes, which a model never reaches."""

    def whole(x: Operands, rates: Rates) -> None:
        update(plan, x, rates)

    function = RULES[plan.rule] if rule_only else whole
    return torch.compile(  # type: ignore[call-overload]  # torch 2.13's stubs lack the last two
        function, fullgraph=True, dynamic=False, isolate_recompiles=True, recompile_limit=256
    )
