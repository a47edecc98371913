"""Fits every task, on every seed, at every rate of one method at once.

    W_0 = start;   g = bf16(W - W*);   W <- bf16 store(rule(W, g))

The rule, the rounding of the weights and that of the moments are the optimizer's own (`mpadam.optim.update`), only
batched: a matrix of the batch is a tensor of its own to the rule (`torch.vmap`), so that a form which looks at the
whole tensor sees one matrix. Tests hold the batch against the optimizer classes, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from mpadam.diagnostics.matrix_fitting.tasks import Problem
from mpadam.optim.card import Constants, Rates, State, Step, StepFunction
from mpadam.optim.names import check_hyperparameters, parse_optimizer_name
from mpadam.optim.options import rates_at
from mpadam.optim.registry import build_optimizer
from mpadam.optim.rules import RULES
from mpadam.optim.update import Preview, advance, apply
from mpadam.study.diagnostics import MatrixFitting

#: single branches have one rate, the others two
METHODS = (
    "adamw",
    "madam",
    "m-plus-adam",
    "m-plus-adam-rho-tensor",
    "m-plus-adam-relative",
    "m-plus-adam-unnormalized",
    "additive-twin",
)
SINGLE = tuple(method for method in METHODS if len(RULES[parse_optimizer_name(method).rule].branches) == 1)


@dataclass(frozen=True)
class Sweep:
    """What one method did at each of its rates.

    rates: one dict a point (`lr`, and `lr_mult` where there are two).
    errors: float32 (updates + 1, points, tasks, seeds): root mean square over a matrix of (w - w*) / w*, before the
        first update and after each; not finite where the weights are not.
    """

    method: str
    rates: list[dict[str, float]]
    errors: Tensor

    @property
    def final(self) -> Tensor:
        """(points, tasks, seeds): geometric mean over the last tenth of the updates, which evens out oscillation."""
        tail = self.errors[-max(1, (len(self.errors) - 1) // 10) :]
        return tail.double().log().mean(0).exp()


def rate_points(method: str, options: MatrixFitting) -> list[dict[str, float]]:
    """The rates that are tried for a method."""
    if method in SINGLE:
        additive = RULES[parse_optimizer_name(method).rule].branches == ("additive",)
        return [{"lr": lr} for lr in (options.rates_adamw if additive else options.rates_madam)]
    pairs = product(options.rates_additive, options.rates_multiplicative)
    return [{"lr": lr, "lr_mult": lr_mult} for lr, lr_mult in pairs]


def relative_error(w: Tensor, target: Tensor) -> Tensor:
    """Root mean square over the last two dimensions of (w - target) / target."""
    return ((w.float() - target) / target).square().mean((-2, -1)).sqrt()


@torch.no_grad()
def fit(method: str, problem: Problem, options: MatrixFitting) -> Sweep:
    """Run one method on everything. Memory: 30 bytes a weight of the batch (points x tasks x seeds x size^2)."""
    points = rate_points(method, options)
    shape = (len(points), *problem.start.shape)
    target = problem.target.expand(shape).flatten(0, 2)
    start = problem.start.expand(shape).flatten(0, 2)
    w = start.to(torch.bfloat16)  # `expand` made no copy, this does
    one = _preview_of_one(method, w[0], options)
    operands = one.operands._replace(
        stored=dict.fromkeys(one.operands.stored, w),  # a bf16 store holds the weight and nothing else
        moments={name: torch.zeros_like(m).repeat(len(w), 1, 1) for name, m in one.operands.moments.items()},
    )
    step_of = _each_matrix(RULES[one.plan.rule].step)
    errors = [relative_error(w, target)]
    for t in range(1, options.steps + 1):
        gradient = (w.float() - target).to(torch.bfloat16)
        operands = operands._replace(grad=gradient)
        rates = _rates(method, points, t, repeats=len(w) // len(points))
        apply(one.plan, operands, advance(one.plan, operands, rates, step_of))
        errors.append(relative_error(w, target))
    return Sweep(method, points, torch.stack(errors).unflatten(1, shape[:3]))


def _preview_of_one(method: str, w: Tensor, options: MatrixFitting) -> Preview:
    """Plan and operands of the optimizer itself on one matrix `w`, bf16 [size, size]."""
    p = nn.Parameter(w.clone())
    optimizer = build_optimizer([{"params": [p]}], method, {}, masters="bf16", state_dtype=options.state_dtype)
    p.grad = torch.zeros_like(p)
    return optimizer.preview(p)


def _rates(method: str, points: list[dict[str, float]], t: int, *, repeats: int) -> Rates:
    """The rates of update `t`, a number per matrix: each point's, `repeats` times."""
    name = parse_optimizer_name(method)
    values = check_hyperparameters(name, {}) | {"rule": name.rule, "weight_decay": 0.0, "weight_decay_mult": 0.0}
    found = [rates_at(values | point, t) for point in points]
    columns = (torch.tensor(column, dtype=torch.float32) for column in zip(*found, strict=True))
    return Rates(*(column.repeat_interleave(repeats) for column in columns))


def _each_matrix(step_of: StepFunction) -> StepFunction:
    """The rule applied to each matrix of a batch by itself, with rates of its own."""

    def batched(
        w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
    ) -> tuple[Step, State]:
        def one(w: Tensor, g: Tensor, state: dict[str, Tensor], r: Rates) -> tuple[tuple[Tensor, ...], State]:
            step, new = step_of(w, g, state, c, r, projection=None)
            return tuple(part.expand_as(w) for part in step), new

        parts, new_state = torch.vmap(one)(w, g, dict(state), r)
        return Step(*parts), new_state

    return batched
