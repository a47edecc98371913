"""The four tasks of the matrix fitting: where the weights start, and where they should go (our reading, see
`mpadam.study.diagnostics.MatrixFitting`)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from mpadam.study.diagnostics import MatrixFitting, Range

#: seeds of tuning are far from those of the report
TUNING_SEED = 1000


@dataclass(frozen=True)
class Problem:
    """start, target: float32 (tasks, seeds, size, size); the seeds reported on, then those that rates are chosen on."""

    start: Tensor
    target: Tensor


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
