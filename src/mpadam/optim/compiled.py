"""An update through torch.compile: one pass over memory where the format allows it.

    CompiledUpdate(plan)(operands, scalars)       what `mpadam.optim.update.update` does

What is compiled how often. A plan whose arithmetic is elementwise sees every tensor as a row of numbers of any length,
so a model's parameters of one kind share a single graph. Codes with scales, Apollo-E and a rho of the whole tensor need
the shape: one graph for each. All numbers that may move between steps (rates, betas, eps, clip, ...), and the keys of
the rounding bits, are tensors: as numbers they would be part of the code, and every step would compile again.

Graphs take a flat tuple of tensors: besides its arithmetic, a call costs a check of each argument, and nested arguments
take twice as long.

A compiler leaves out a cast to bf16 that is cast back unless it is told not to: `emulate_precision_casts`.

Compiled code is kept on disk (`TORCHINDUCTOR_CACHE_DIR`), and the next process loads it. Torch finds it by its options
among others, but not by the width of the processor's vectors (2.13): code for 512 bits, found by a machine with 256,
leaves half of the weights as they are and says nothing. So the width is an option.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mpadam.compiler import compile_problem, vector_bits
from mpadam.optim.card import Constants, Rates, Scalar
from mpadam.optim.checks import caution
from mpadam.optim.store import Draw
from mpadam.optim.update import Operands, Plan, update

_LOG = logging.getLogger(__name__)
_OPTIONS = {"emulate_precision_casts": True}
_THREADS = {"cpp.min_chunk_size": 1}
"""A graph for any length uses threads, however short the tensor that it happens to be compiled for."""
_WHOLE = dict.fromkeys(
    ("realize_cpu_opcount_threshold", "realize_cpu_acc_reads_threshold", "realize_reads_threshold"), 80
)
"""A rule has fewer operations than this, and is not cut in two. On a CPU the arithmetic of codes is cut where
`numerics.blocks.computed_once` says: a loop that only reads float32, between others that read bf16, halves the vectors
of all, and they take four times as long. With 120, stochastic rounding to NVFP4 takes twice as long to compile."""
_SHORT = 2**13
"""Elements of a tensor so short that threads cost more than they save: gains and biases get a graph for their own
length, and not the one for any."""
GAINS_FROM = 2**20
"""Trained parameters from which `compile="auto"` compiles: see docs/speed.md, "When a compilation pays"."""
_SHAPES = 256
"""Graphs of one plan at most: shapes of a model, each with the dtypes of its gradients. None comes near."""


@dataclass(frozen=True)
class _Layout:
    """Which tensors the flat arguments of a graph are; short: of a draw, None where there is none."""

    copy: bool
    stored: tuple[str, ...]
    moments: tuple[str, ...]
    short: bool | None
    projection: bool


def scalar_tensor(numbers: Sequence[Scalar]) -> Tensor:
    """The numbers in one float32 tensor; on the CPU, whatever the default device is."""
    return torch.tensor(numbers, dtype=torch.float32, device="cpu")


def scalars(constants: Constants, rates: Rates, device_type: str) -> tuple[Tensor, ...]:
    """The numbers of an update as a graph takes them.

    A CPU's are one tensor. Its loop cannot keep a number in a register, since what it stores might be that number, and
    reads each again for every vector: from one address that is a single instruction, from a dozen twice as many.
    """
    numbers = scalar_tensor((*rates, *constants.numbers()))
    return (numbers,) if device_type == "cpu" else numbers.unbind()


class CompiledUpdate:
    """`update` of a plan, whatever its numbers are, compiled (see the module), for operands of one layout."""

    def __init__(self, plan: Plan) -> None:
        self.plan = replace(plan, constants=plan.constants.form())
        self._graphs: dict[bool, Callable[..., None]] = {}

    def __call__(self, x: Operands, numbers: tuple[Tensor, ...]) -> None:
        """numbers: what `scalars` gives."""
        wide = [*x.stored.values(), *x.moments.values()]
        if x.copy is not None:
            wide.append(x.copy)
        any_length = False
        if self.plan.elementwise and all(t.is_contiguous() for t in wide):
            any_length = x.grad.numel() > _SHORT
            wide.append(x.grad.contiguous())
            # .data and not the view itself: a graph looks at the shape of what a view is a view of.
            wide = [t.view(-1).data for t in wide]
        else:
            wide.append(x.grad)
        if any_length not in self._graphs:
            self._graphs[any_length] = _compiled(self.plan, _layout(x), any_length, x.grad.device.type)
        self._graphs[any_length](*wide, *_rest(x), *numbers)


def _layout(x: Operands) -> _Layout:
    short = None if x.draw is None else x.draw.short
    return _Layout(x.copy is not None, tuple(x.stored), tuple(x.moments), short, x.projection is not None)


def _rest(x: Operands) -> list[Tensor]:
    """What is not as long as the weight: the draw as 0-d tensors (or an index, which is), and the projection."""
    rest: list[Tensor] = []
    if x.draw is not None:
        *keys, position = x.draw.tensors()
        rest += (*keys, position.view(-1) if position.dim() else position)
    return rest if x.projection is None else [*rest, x.projection]


@cache
def _compiled(plan: Plan, layout: _Layout, any_length: bool, device_type: str) -> Callable[..., None]:
    def whole(*tensors: Tensor) -> None:
        operands, rates, numbers = _unflatten(layout, iter(tensors), packed=device_type == "cpu")
        update(Plan(plan.rule, plan.constants.with_numbers(numbers), plan.store), operands, rates)

    return torch.compile(  # type: ignore[call-overload]  # torch 2.13's stubs lack the last two
        whole,
        fullgraph=True,
        dynamic=any_length,
        options=_options(plan, any_length, device_type),
        isolate_recompiles=True,
        recompile_limit=_SHAPES,
    )


def _options(plan: Plan, any_length: bool, device_type: str) -> dict[str, Any]:
    options = _OPTIONS | _THREADS if any_length else _OPTIONS
    if device_type != "cpu":
        return options
    return options | {"cpp.simdlen": vector_bits()} | ({} if plan.elementwise else _WHOLE)


def _unflatten(layout: _Layout, tensors: Iterator[Tensor], *, packed: bool) -> tuple[Operands, Rates, Sequence[Tensor]]:
    operands = Operands(
        stored={name: next(tensors) for name in layout.stored},
        moments={name: next(tensors) for name in layout.moments},
        copy=next(tensors) if layout.copy else None,
        grad=next(tensors),
        draw=None if layout.short is None else Draw((next(tensors), next(tensors)), next(tensors), layout.short),
        projection=next(tensors) if layout.projection else None,
    )
    numbers = next(tensors).unbind() if packed else tuple(tensors)
    return operands, Rates(*numbers[:4]), numbers[4:]


def is_worthwhile(option: bool | str, parameters: int, said: set[str]) -> bool:
    """Whether the option `compile` asks for compiled steps of an optimizer that trains so many parameters; where "auto"
    finds them too few, this is logged once. said: what this optimizer has said already."""
    if option != "auto" or parameters >= GAINS_FROM:
        return bool(option)
    if "small" not in said:
        said.add("small")
        _LOG.info("steps run eagerly: %d parameters are too few to gain from a compilation", parameters)
    return False


@cache
def can_compile(device_type: str) -> bool:
    """Whether kernels compile and run on this kind of device; if not, says so once, and what to do."""
    problem = compile_problem(device_type)
    if problem:
        caution(
            f"the optimizer's step is not compiled: {problem}. Steps on this device run eagerly, which is much "
            "slower for large models and gives the same update; compile=False avoids this warning"
        )
    return not problem
