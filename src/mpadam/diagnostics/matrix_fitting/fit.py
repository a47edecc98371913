"""Fits every task, on every seed, at every rate of one method at once.

    W_0 = start;   g = bf16(W - W*);   W <- bf16 store(rule(W, g))

The rule, the rounding of the weights and that of the moments are the optimizer's own (`mpadam.optim.update`), only
batched: a matrix of the batch is a tensor of its own to the rule (`torch.vmap`), so that a form which looks at the
whole tensor sees one matrix. Tests hold the batch against the optimizer classes, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from mpadam.diagnostics.matrix_fitting.tasks import Problem
from mpadam.numerics.formats import Bf16
from mpadam.optim.base import DTYPES, rates_at
from mpadam.optim.hyperparameters import check_hyperparameters
from mpadam.optim.names import parse_optimizer_name
from mpadam.optim.rules import RULES, Constants, Rates, Rule, State, Step, state_shapes
from mpadam.optim.store import StorePlan
from mpadam.optim.update import Operands, Plan, advance, apply
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
SINGLE = ("adamw", "madam")
CODES = "weight.codes"  # the tensor of a bf16 store that holds the weight


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
        return [{"lr": lr} for lr in (options.rates_adamw if method == "adamw" else options.rates_madam)]
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
    plan = _plan(method)
    w = start.to(torch.bfloat16)  # `expand` made no copy, this does
    moments = {
        name: torch.zeros((len(w), *size), dtype=DTYPES[options.state_dtype])
        for name, size in state_shapes(plan.rule, w.shape[1:], plan.constants).items()
    }
    rule = _each_matrix(RULES[plan.rule])
    errors = [relative_error(w, target)]
    for t in range(1, options.steps + 1):
        gradient = (w.float() - target).to(torch.bfloat16)
        operands = Operands(copy=None, stored={CODES: w}, moments=moments, grad=gradient, bits=None, projection=None)
        rates = _rates(method, points, t, repeats=len(w) // len(points))
        apply(plan, operands, advance(plan, operands, rates, rule))
        errors.append(relative_error(w, target))
    return Sweep(method, points, torch.stack(errors).unflatten(1, shape[:3]))


def _plan(method: str) -> Plan:
    name = parse_optimizer_name(method)
    values = check_hyperparameters(name, {})
    given = {key: values[key] for key in ("beta1", "beta2", "eps", "tau", "max_relative_step") if key in values}
    form = {} if name.form is None else {"multiplicative_form": name.form}
    return Plan(name.rule, Constants(**given, **form), StorePlan(Bf16()))  # type: ignore[arg-type]


def _rates(method: str, points: list[dict[str, float]], t: int, *, repeats: int) -> Rates:
    """The rates of update `t`, a number a matrix: each point's, `repeats` times."""
    name = parse_optimizer_name(method)
    values = check_hyperparameters(name, {}) | {"rule": name.rule, "weight_decay": 0.0, "weight_decay_mult": 0.0}
    found = [rates_at(values | point, t) for point in points]
    columns = (torch.tensor(column, dtype=torch.float32) for column in zip(*found, strict=True))
    return Rates(*(column.repeat_interleave(repeats) for column in columns))


def _each_matrix(rule: Rule) -> Rule:
    """The rule applied to each matrix of a batch by itself, with rates of its own."""

    def batched(
        w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None = None
    ) -> tuple[Step, State]:
        def one(w: Tensor, g: Tensor, state: dict[str, Tensor], r: Rates) -> tuple[tuple[Tensor, ...], State]:
            step, new = rule(w, g, state, c, r, projection=None)
            return tuple(part.expand_as(w) for part in step), new

        parts, new_state = torch.vmap(one)(w, g, dict(state), r)
        return Step(*parts), new_state

    return batched
