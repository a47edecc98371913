"""One update of one parameter as a pure function over tensors.

    read -> rule -> round -> (ECO: the rounding error into the first moment) -> new tensors

`mpadam.optim.compiled` gives the whole of it to torch.compile, so a compiled step reads and writes each tensor once.

A step is float32 arithmetic with one rounding at its end. Around it a training loop may have switched on autocast, TF32
or bf16 products for float32 matrices, or inference mode; all of them end where an update begins
(`float32_arithmetic`). Dtype and device of what an update makes for itself are given where it is made, so defaults do
not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mpadam.optim.apollo import projected_shape
from mpadam.optim.card import Constants, Rates, State, Step, StepFunction
from mpadam.optim.rules import RULES
from mpadam.optim.store import Draw, StorePlan


@dataclass(frozen=True)
class Plan:
    """All that is fixed about the update of a parameter: rule x write-back x format and its constants."""

    rule: str
    constants: Constants
    store: StorePlan

    @property
    def elementwise(self) -> bool:
        """Whether every element is updated without a look at the others."""
        return self.store.format.dtype is not None and not RULES[self.rule].looks_at_whole(self.constants)

    @property
    def by_rows(self) -> bool:
        """Whether the update of some rows of a matrix can be told from these rows, given the scale of the tensor."""
        return self.store.format.block[0] == 1 and not RULES[self.rule].looks_at_whole(self.constants)

    def state_shapes(self, shape: torch.Size) -> dict[str, torch.Size]:
        """Name -> shape of the states that the rule keeps for a weight of `shape`; all start at zero."""
        c = self.constants
        names = RULES[self.rule].state_names(c.multiplicative_form, c.second_moment)
        return {name: projected_shape(shape, c.apollo_rank) if name == "v_r" else shape for name in names}


class Operands(NamedTuple):
    """The tensors of one update, of a weight of shape [*shape].

    copy: [*shape], the compute copy, or None where the parameter is the weight.  stored: the tensors of the store.
    moments: the states of the rule, in the dtype they are kept in.  grad: [*shape], any floating dtype.
    draw: what rounding bits are drawn from.  projection: float32 [rank, smaller dimension], of Apollo-E.  Both None
    where not needed.
    """

    copy: Tensor | None
    stored: dict[str, Tensor]
    moments: State
    grad: Tensor
    draw: Draw | None
    projection: Tensor | None

    def bits(self) -> Tensor | None:
        """int32 [*shape], the random bits of this update."""
        return None if self.draw is None else self.draw.bits(self.grad.shape, self.grad.device)

    def of_rows(self, rows: Tensor) -> Operands:
        """Those of some rows (int64) of a weight of two or more dimensions; of a plan that is `by_rows`."""
        lead, columns = self.grad.shape[:-1], self.grad.shape[-1]

        def part(x: Tensor) -> Tensor:
            return x.reshape(lead.numel(), -1)[rows] if x.dim() else x  # a scale of the whole tensor stays

        draw = self.draw
        if draw is not None:
            across = torch.arange(columns, device=rows.device)
            at = rows.unsqueeze(1) * columns + across
            position = draw.position.reshape(-1)[at] if isinstance(draw.position, Tensor) else draw.position + at
            draw = draw._replace(position=position)
        return self._replace(
            copy=None,
            stored={name: part(x) for name, x in self.stored.items()},
            moments={name: part(x) for name, x in self.moments.items()},
            grad=part(self.grad),
            draw=draw,
        )


class Update(NamedTuple):
    """What one update computed: the weight before it and the step before rounding, float32 [*shape], the new moments in
    float32, and the store's tensors after it."""

    before: Tensor
    step: Step
    moments: State
    stored: dict[str, Tensor]


class Preview(NamedTuple):
    """The next update of a parameter: what it works on, and what it comes to. Nothing of it is made yet."""

    plan: Plan
    operands: Operands
    rates: Rates
    update: Update


def advance(plan: Plan, x: Operands, rates: Rates, step_of: StepFunction | None = None) -> Update:
    """The update as a pure function; float32 until the store rounds. `step_of`: in place of the rule's function."""
    w = plan.store.read(x.stored, x.grad.shape)
    moments = {name: tensor.to(torch.float32) for name, tensor in x.moments.items()}
    rule, c = RULES[plan.rule], plan.constants
    step_of = step_of or rule.step
    step, new_moments = step_of(w, x.grad.to(torch.float32), moments, c, rates, projection=x.projection)
    written = plan.store.write(x.stored, w, step.delta, x.bits())
    if plan.store.feeds_back and rule.feedback is not None:
        new_moments = rule.feedback(new_moments, plan.store.error(written), c, rates)
    return Update(w, step, new_moments, written.tensors)


def apply(plan: Plan, x: Operands, new: Update) -> None:
    """Put the results in their places; moments round to nearest in their own dtype."""
    for name, tensor in new.moments.items():
        x.moments[name].copy_(tensor)
    for name, tensor in new.stored.items():
        x.stored[name].copy_(tensor)
    if x.copy is not None:
        x.copy.copy_(plan.store.decode(new.stored, x.copy.shape, x.copy.dtype))


def update(plan: Plan, x: Operands, rates: Rates) -> None:
    apply(plan, x, advance(plan, x, rates))


# --- what surrounds a step and must not change it ---------------------------------------------------------------------


_BACKENDS: Any = torch.backends  # torch's own annotations lack the precision of products


@contextmanager
def float32_arithmetic(device_types: Iterable[str]) -> Iterator[None]:
    """Inside: no gradients are recorded, nothing is an inference tensor, and float32 products are float32."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())  # after inference_mode, which sets this too
        for kind in device_types:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        for products in (_BACKENDS.cuda.matmul, _BACKENDS.mkldnn.matmul):
            stack.enter_context(_full_precision(products))
        yield


@contextmanager
def _full_precision(products: Any) -> Iterator[None]:
    """Products of float32 in float32, whatever `torch.set_float32_matmul_precision` was told."""
    before = products.fp32_precision
    if before in ("ieee", "none"):
        yield
        return
    inherited = before == _BACKENDS.fp32_precision
    products.fp32_precision = "ieee"
    try:
        yield
    finally:
        products.fp32_precision = "none" if inherited else before
