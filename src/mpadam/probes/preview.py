"""The update that an optimizer is about to make, computed beside it.

The optimizer's own `observer` tells of an update when it is over, carry and scales already overwritten, and makes a
compiled step run eagerly, which may change its last bits. So the same pure functions are called here before the step,
on the tensors as they are; the step then runs as if nobody had looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from mpadam.optim.ambient import float32_arithmetic
from mpadam.optim.apollo import projection_at
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.options import constants, rates_at
from mpadam.optim.rules import State, Step, state_shapes
from mpadam.optim.store import StorePlan
from mpadam.optim.update import Operands, Plan, advance


class Preview(NamedTuple):
    """An update before it is made; tensors of the parameter's shape, float32 where nothing else is said.

    rule: its name.  store: how the weight is kept.
    before: the stored weight.  grad: as the optimizer gets it.  step: its parts.
    moments, moments_before: states after the update before they are rounded, and as they are stored now.
    stored_before, stored: tensors of the store before and after the update.  bits: of stochastic rounding, or None.
    """

    rule: str
    store: StorePlan
    before: Tensor
    grad: Tensor
    step: Step
    moments: State
    moments_before: State
    stored_before: Mapping[str, Tensor]
    stored: Mapping[str, Tensor]
    bits: Tensor | None


def preview(optimizer: LowPrecisionOptimizer, p: Tensor, group: Mapping[str, Any]) -> Preview:
    """The next update of parameter `p` of `group`, which has a gradient.

    Raises ValueError for a sharded parameter: block scales and bins need the whole of it.
    """
    if isinstance(p, DTensor):
        raise ValueError(
            f"probes of a parameter of shape {tuple(p.shape)} that is a DTensor: they look at whole parameters only; "
            "set probe_every: null, or replicate the parameters (DDP)"
        )
    assert p.grad is not None
    store, state = optimizer.store_of(p), optimizer.state[p]
    t = state["step"] + 1
    bits = store.bits(t)
    compress = "v_r" in state
    plan = Plan(optimizer.rule, constants(group, compress=compress), store.plan)
    operands = Operands(
        copy=None,
        stored=store.tensors,
        moments={name: state[name] for name in state_shapes(plan.rule, p.shape, plan.constants)},
        grad=p.grad,
        bits=bits,
        projection=projection_at(t, p, group, tensor_id=store.tensor_id) if compress else None,
    )
    with float32_arithmetic({p.device.type}):
        new = advance(plan, operands, rates_at(group, t))
    grad = p.grad.to(torch.float32)
    return Preview(
        rule=plan.rule,
        store=store.plan,
        before=new.before,
        grad=grad,
        step=new.step,
        moments=new.moments,
        moments_before=operands.moments,
        stored_before=operands.stored,
        stored=new.stored,
        bits=bits,
    )
