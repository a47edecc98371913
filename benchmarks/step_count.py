"""What a training step's elementwise work would be on an H100, counted where there is none: kernels and bytes.

    python benchmarks/step_count.py                        # 60m 130m 350m 1b, bf16 and native FP8: some minutes
    PYTHONPATH=FOLDER python benchmarks/step_count.py --sizes 60m

A count, not a measurement: forward and backward pass are traced on tensors without memory, compiled pieces are lowered
to Triton for a pretended H100, and nothing is run. Products and attention are left out. `planned` is what
`mpadam plan` assumes of the same bytes. Triton is needed, its wheel alone
(`pip install --no-deps --target FOLDER triton==3.7.1`), and g++.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from traffic import Call, Operand, Passes, passes

from mpadam.llama import PAPER_SIZES
from mpadam.model.compiled import OPTIONS
from mpadam.plan.cost import Shape, elementwise_bytes
from mpadam.study.config import ModelConfig
from mpadam.study.spec import ModelSpec

VOCABULARY, LENGTH, BATCH = 32_000, 256, 512
MICRO_BATCHES = {"60m": 256, "130m": 256, "350m": 64, "1b": 32}


@dataclass(frozen=True)
class Work:
    """Of one update on one GPU."""

    kernels: int
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.kernels + other.kernels, self.bytes + other.bytes)

    def __sub__(self, other: Work) -> Work:
        return Work(self.kernels - other.kernels, self.bytes - other.bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(MICRO_BATCHES), default=list(MICRO_BATCHES))
    options = parser.parse_args()
    if find_spec("triton") is None:
        parser.error("Triton is not there: pip install --no-deps --target FOLDER triton==3.7.1, then PYTHONPATH=FOLDER")
    from pretended import pretend_h100

    pretend_h100()
    print("| model | work | eager: kernels | GB | compiled: kernels | GB | planned GB |\n|---|---|---|---|---|---|---|")
    for size in options.sizes:
        eager, compiled = (parts(size, compile) for compile in (False, True))
        shape = Shape(ModelConfig(**vars(PAPER_SIZES[size]), steps_1x=1), VOCABULARY, LENGTH)
        both, casts = (BATCH * LENGTH * elementwise_bytes(shape, b, compiled=True) for b in (None, "native"))
        planned = {"layers and loss": both, "casts": casts - both}
        for name, before in eager.items():
            after, told = compiled[name], f"{planned[name] / 1e9:.0f}" if name in planned else ""
            numbers = f"{before.kernels:,} | {before.bytes / 1e9:.0f} | {after.kernels:,} | {after.bytes / 1e9:.0f}"
            print(f"| {size} | {name} | {numbers} | {told} |", flush=True)


def parts(size: str, compile: bool) -> dict[str, Work]:
    """Layers, loss, both, and the casts of native FP8."""
    spec = ModelSpec(**vars(PAPER_SIZES[size]), vocab_size=VOCABULARY, sequence_length=LENGTH, attention="sdpa")
    few = spec.model_copy(update={"layers": 1})
    micro = MICRO_BATCHES[size]
    whole, native, one = (
        work(passes(model, micro, backend, compile=compile), BATCH // micro)
        for model, backend in ((spec, None), (spec, "native"), (few, None))
    )
    two = work(passes(spec.model_copy(update={"layers": 2}), micro, None, compile=compile), BATCH // micro)
    layer = two - one
    layers = Work(spec.layers * layer.kernels, spec.layers * layer.bytes)
    return {"layers": layers, "loss": whole - layers, "layers and loss": whole, "casts": native - whole}


def work(found: Passes, times: int) -> Work:
    """Of an update of `times` micro-batches."""
    pieces = [(lowered(call), count) for call, count in found.pieces.items()]
    kernels = found.operations + sum(each.kernels * count for each, count in pieces)
    moved = found.bytes + sum(each.bytes * count for each, count in pieces)
    return Work(times * kernels, times * moved)


@cache
def lowered(call: Call) -> Work:
    """A compiled piece, forward and backward."""
    from lowered import lower

    arguments = tuple(_tensor(a) if isinstance(a, Operand) else a for a in call.arguments)
    graphs = lower(call.piece, arguments, OPTIONS)
    return Work(sum(len(graph.kernels) for graph in graphs), sum(graph.bytes for graph in graphs))


def _tensor(operand: Operand) -> Any:
    """Memory that nobody touches."""
    return torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, requires_grad=operand.requires_grad)


if __name__ == "__main__":
    main()
