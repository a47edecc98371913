"""Figures 3 and 5: every task of the matrix fitting, on every seed, at every rate of a method at once.

    W_0 = start;   g = bf16(W - W*);   W <- bf16 store(rule(W, g))

The rule, the rounding of the weights and that of the moments are the optimizer's own (`mpadam.optim.update`), only
batched: a matrix of the batch is a tensor of its own to the rule (`torch.vmap`), so that a form which looks at the
whole tensor sees one matrix. Tests hold the batch against the optimizer classes, bit for bit.

Rates are chosen on the tuning seeds and shown on the others. A single branch is shown at its best rate for each task,
the others at one rate for all tasks, as in the paper. Every method is chosen in both ways, so that a table compares
like with like.

    produce(MatrixFitting(), Path("results/smoke"))
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from torch import Generator, Tensor, nn

from mpadam.diagnostics.records import write_csv, write_results
from mpadam.optim.card import Constants, Rates, State, Step, StepFunction
from mpadam.optim.names import check_hyperparameters, parse_optimizer_name
from mpadam.optim.options import rates_at
from mpadam.optim.registry import build_optimizer
from mpadam.optim.rules import RULES
from mpadam.optim.update import Preview, advance, apply
from mpadam.study.diagnostics import MatrixFitting, Range

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
HOW = ("best per task", "one for all tasks")  # ways to choose the rates of a method
POINTS_A_CURVE = 100
#: seeds of tuning are far from those of the report
TUNING_SEED = 1000


@dataclass(frozen=True)
class Problem:
    """start, target: float32 (tasks, seeds, size, size); the seeds reported on, then those that rates are chosen on."""

    start: Tensor
    target: Tensor


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


@dataclass(frozen=True)
class Choice:
    """points: index of the chosen rates of each task.  open_ends: for each task the rates whose chosen value is the
    least or greatest that was tried, so that a better one may lie beyond."""

    sweep: Sweep
    how: str
    points: list[int]
    open_ends: list[list[str]]

    def final(self, task: int, seeds: int) -> Tensor:
        """Final errors on the first `seeds` seeds, those reported on."""
        return self.sweep.final[self.points[task], task, :seeds]


def produce(options: MatrixFitting, root: Path) -> None:
    """Write diagnostics/matrix-fitting/ under `root`: results.json, curves.csv, sweeps.csv."""
    matrices = problem(options)
    sweeps = [fit(method, matrices, options) for method in METHODS]
    choices = [choose(sweep, how, seeds=options.seeds) for sweep in sweeps for how in HOW]
    write_records(options, sweeps, choices, root / "diagnostics" / "matrix-fitting")


# --- fitting ---------------------------------------------------------------------------------------------------------


def rate_points(method: str, options: MatrixFitting) -> list[dict[str, float]]:
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
    """Run one method on everything. Memory: 30 bytes per weight of the batch (points x tasks x seeds x size^2)."""
    points = rate_points(method, options)
    shape = (len(points), *problem.start.shape)
    target = problem.target.expand(shape).flatten(0, 2)
    w = problem.start.expand(shape).flatten(0, 2).to(torch.bfloat16)  # `expand` made no copy, this does
    one = _preview_of_one(method, w[0], options)
    operands = one.operands._replace(
        stored=dict.fromkeys(one.operands.stored, w),  # a bf16 store holds the weight and nothing else
        moments={name: torch.zeros_like(m).repeat(len(w), 1, 1) for name, m in one.operands.moments.items()},
    )
    step_of = _each_matrix(RULES[one.plan.rule].step)
    errors = [relative_error(w, target)]
    for t in range(1, options.steps + 1):
        operands = operands._replace(grad=(w.float() - target).to(torch.bfloat16))
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


# --- choosing rates --------------------------------------------------------------------------------------------------


def choose(sweep: Sweep, how: str, *, seeds: int) -> Choice:
    """Least mean of log(final error) over the seeds after the first `seeds`; a rate with an error that is not finite
    there is not chosen while another is."""
    score = sweep.final[:, :, seeds:].log().mean(-1)
    score = torch.where(score.isfinite(), score, torch.inf)
    if how == "one for all tasks":
        score = score.mean(1, keepdim=True).expand_as(score)
    points = score.argmin(0).tolist()
    return Choice(sweep, how, points, [_open_ends(sweep, point) for point in points])


def _open_ends(sweep: Sweep, point: int) -> list[str]:
    return [
        name
        for name, value in sweep.rates[point].items()
        if value in (min(r[name] for r in sweep.rates), max(r[name] for r in sweep.rates))
    ]


# --- records: a row per observation ----------------------------------------------------------------------------------


def write_records(options: MatrixFitting, sweeps: Sequence[Sweep], choices: Sequence[Choice], folder: Path) -> None:
    write_results(folder, options, choices=[_choice_record(choice, options.seeds) for choice in choices])
    write_csv(_curves(options, choices), folder / "curves.csv")
    write_csv(_sweep_points(options, sweeps), folder / "sweeps.csv")


def _curves(options: MatrixFitting, choices: Sequence[Choice]) -> pd.DataFrame:
    """The error after about a hundred of the updates, at the chosen rates, seeds reported on."""
    every = max(1, options.steps // POINTS_A_CURVE)
    rows = [
        (task, choice.sweep.method, choice.how, seed, point * every, _finite(error))
        for choice in choices
        for number, task in enumerate(TASKS)
        for point, errors in enumerate(
            choice.sweep.errors[::every, choice.points[number], number, : options.seeds].tolist()
        )
        for seed, error in enumerate(errors)
    ]
    return pd.DataFrame(rows, columns=["task", "method", "rates", "seed", "update", "error"])


def _sweep_points(options: MatrixFitting, sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """The final error at every rate that was tried, seeds reported on."""
    rows = [
        (task, sweep.method, rates["lr"], rates.get("lr_mult"), seed, _finite(error))
        for sweep in sweeps
        for rates, by_task in zip(sweep.rates, sweep.final[:, :, : options.seeds].tolist(), strict=True)
        for task, errors in zip(TASKS, by_task, strict=True)
        for seed, error in enumerate(errors)
    ]
    return pd.DataFrame(rows, columns=["task", "method", "lr", "lr_mult", "seed", "error"])


def _choice_record(choice: Choice, seeds: int) -> dict[str, object]:
    tasks = {
        task: {
            **choice.sweep.rates[choice.points[number]],
            "not_bracketed": choice.open_ends[number],
            "final_errors": [_finite(error) for error in choice.final(number, seeds).tolist()],
        }
        for number, task in enumerate(TASKS)
    }
    return {"method": choice.sweep.method, "rates": choice.how, "tasks": tasks}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- the four tasks: where the weights start, and where they should go (our reading) ----------------------------------


def problem(options: MatrixFitting) -> Problem:
    """All tasks on all seeds; a matrix depends on its task and seed alone."""
    seeds = [*range(options.seeds), *(TUNING_SEED + k for k in range(options.tuning_seeds))]
    pairs = [
        [TASKS[task](options, Generator().manual_seed(100 * seed + number)) for seed in seeds]
        for number, task in enumerate(TASKS)
    ]
    start, target = (torch.stack([torch.stack([pair[k] for pair in row]) for row in pairs]) for k in (0, 1))
    return Problem(start, target)


def _sign_errors(options: MatrixFitting, generator: Generator) -> tuple[Tensor, Tensor]:
    target = _signed(options, options.ordinary, generator)
    turned = torch.rand(target.shape, generator=generator) < options.wrong_share
    return torch.where(turned, -target, target), target


def _zero_weights(options: MatrixFitting, generator: Generator) -> tuple[Tensor, Tensor]:
    target = _signed(options, options.ordinary, generator)
    return torch.zeros_like(target), target


def _small_weights(options: MatrixFitting, generator: Generator) -> tuple[Tensor, Tensor]:
    target = _signed(options, options.ordinary, generator)
    return _magnitudes(options, options.small, generator).copysign(target), target


def _large_weights(options: MatrixFitting, generator: Generator) -> tuple[Tensor, Tensor]:
    target = _signed(options, options.large, generator)
    factor = torch.randn(target.shape, generator=generator).mul(options.large_error).exp()
    return target * factor, target


#: in the order of the panels (a) to (d)
TASKS: Mapping[str, Callable[[MatrixFitting, Generator], tuple[Tensor, Tensor]]] = {
    "sign errors": _sign_errors,
    "zero weights": _zero_weights,
    "small weights": _small_weights,
    "large weights": _large_weights,
}


def _signed(options: MatrixFitting, range_: Range, generator: Generator) -> Tensor:
    magnitudes = _magnitudes(options, range_, generator)
    return torch.where(torch.rand(magnitudes.shape, generator=generator) < 0.5, -magnitudes, magnitudes)


def _magnitudes(options: MatrixFitting, range_: Range, generator: Generator) -> Tensor:
    low, high = map(math.log, range_)
    return (low + (high - low) * torch.rand(options.size, options.size, generator=generator)).exp()
