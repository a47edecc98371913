"""Optimizers whose step is timed: ours by name and masters, and others' that do a comparable work.

| rival               | what it is                                             |
|---------------------|--------------------------------------------------------|
| torch, fused        | torch.optim.AdamW(fused=True), in fp32 and in bf16     |
| torchao, SR         | AdamW with stochastic rounding of bf16 weights         |
| optimi, Kahan       | AdamW with Kahan summation of bf16 weights             |
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, util

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpadam.optim.names import parse_optimizer_name
from mpadam.optim.registry import build_optimizer
from mpadam.study.measure import StepTime

GRADIENT = 1e-3  # standard deviation; weights have that of an initialisation
WEIGHT = 0.02
TORCH_FUSED = "torch AdamW, fused"


@dataclass(frozen=True)
class Subject:
    """name: an optimizer of ours, or a rival's label.  masters: how its weights are kept.  step: one update."""

    name: str
    masters: str
    step: Callable[[], object]


def subjects(options: StepTime) -> Iterator[Subject]:
    """All of them, each with weights and gradients of its own."""
    for name in options.optimizers:
        for masters in options.masters:
            if masters == "fp32" and parse_optimizer_name(name).write_back != "nearest":
                continue  # nothing is lost in fp32 that they could save
            yield _ours(name, masters, options)
    for rival in options.rivals:
        if util.find_spec(rival) is not None:
            yield from _RIVALS[rival](options)


def absent(options: StepTime) -> list[str]:
    """Rivals that are not installed."""
    return [rival for rival in options.rivals if util.find_spec(rival) is None]


def _ours(name: str, masters: str, options: StepTime) -> Subject:
    layers = nn.ModuleList(nn.Linear(columns, rows, bias=False) for rows, columns in options.shapes)
    layers = layers.to(options.device, torch.bfloat16)
    stream = torch.Generator().manual_seed(0)
    for p in layers.parameters():
        with torch.no_grad():
            p.copy_(_normal(p, stream) * WEIGHT)
        p.grad = (_normal(p, stream) * GRADIENT).to(p)
    state_dtype = "fp32" if masters == "fp32" else "bf16"
    optimizer = build_optimizer(layers, name, {}, masters=masters, state_dtype=state_dtype, compile=options.compile)
    return Subject(name, masters, optimizer.step)


def _normal(p: Tensor, stream: torch.Generator) -> Tensor:
    return torch.randn(p.shape, generator=stream)


def _weights(options: StepTime, dtype: torch.dtype) -> list[nn.Parameter]:
    """Plain parameters with gradients, for optimizers that are not ours."""
    stream = torch.Generator().manual_seed(0)
    weights = []
    for shape in options.shapes:
        p = nn.Parameter((torch.randn(shape, generator=stream) * WEIGHT).to(options.device, dtype))
        p.grad = (_normal(p, stream) * GRADIENT).to(p)
        weights.append(p)
    return weights


def _torch(options: StepTime) -> Iterator[Subject]:
    for masters, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        yield Subject(TORCH_FUSED, masters, torch.optim.AdamW(_weights(options, dtype), fused=True).step)


def _torchao(options: StepTime) -> Iterator[Subject]:
    adamw = import_module("torchao.optim")._AdamW
    yield _rival("torchao AdamW, SR", adamw(_weights(options, torch.bfloat16), bf16_stochastic_round=True))


def _optimi(options: StepTime) -> Iterator[Subject]:
    adamw = import_module("optimi").AdamW
    yield _rival("optimi AdamW, Kahan", adamw(_weights(options, torch.bfloat16), lr=1e-3, kahan_sum=True))


def _rival(label: str, optimizer: Optimizer) -> Subject:
    return Subject(label, "bf16", optimizer.step)


_RIVALS: dict[str, Callable[[StepTime], Iterator[Subject]]] = {
    "torch": _torch,
    "torchao": _torchao,
    "optimi": _optimi,
}


def parameters(shapes: Sequence[tuple[int, int]]) -> int:
    """Weights that one step updates."""
    return sum(rows * columns for rows, columns in shapes)
