"""Bytes that forward and backward pass read and write, operation by operation, on tensors without memory.

    passes(spec, micro_batch, backend, compile=True)      of one micro-batch

A compiled piece (`mpadam.model.compiled`) counts as nothing here: `Passes.pieces` says which ones are called with what,
and `lowered` what a GPU's kernels move for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpadam.model import compiled, loss
from mpadam.model.build import build_model
from mpadam.model.fp8.control import compile_casts
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.study.spec import ModelSpec

#: Their time is that of their arithmetic.
PRODUCTS = ("mm", "bmm", "addmm", "_scaled_mm", "_scaled_dot_product")
#: They touch what is named of their first operand, which is little.
INDEXED = ("gather", "scatter", "embedding")


@dataclass(frozen=True)
class Operand:
    """A tensor argument of a piece."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


@dataclass(frozen=True)
class Call:
    """A compiled piece and its arguments, tensors as `Operand`."""

    piece: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Passes:
    """operations, bytes: outside of the pieces and of products. pieces: how often each is called."""

    operations: int
    bytes: int
    pieces: Counter[Call]


class Traffic(TorchDispatchMode):
    """Adds up what each operation reads and writes, for those that touch memory and are no products."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.operations = 0
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if self.paused or name.startswith(PRODUCTS):
            return out
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        if name.startswith(INDEXED):
            inputs, outputs = inputs[1:], [] if func._schema.is_mutable else outputs
        shared = {_storage(t) for t in inputs}
        if func._schema.is_mutable or any(_storage(t) not in shared for t in outputs):
            self.operations += 1
            self.bytes += sum(map(_size, [*inputs, *outputs]))
        return out


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _size(tensor: Tensor) -> int:
    """Bytes of the memory behind a tensor; an expanded one is smaller than it looks."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * torch.Size(length for length, stride in pairs if stride).numel()


def passes(spec: ModelSpec, micro_batch: int, backend: str | None, *, compile: bool) -> Passes:
    """One micro-batch in bf16, forward and backward.

    backend: of FP8 products, None without. `emulated` reads numbers on the way, so its tensors have memory.
    """
    without_memory = nullcontext() if backend == "emulated" else FakeTensorMode(allow_non_fake_inputs=True)
    with without_memory, Traffic() as traffic:
        traffic.paused = True
        model = build_model(spec, seed=0)
        if backend is not None:
            convert_to_fp8(model, backend=backend)
        calls: Counter[Call] = Counter()
        with _noted(calls, traffic):
            if compile:
                compiled.compile_layers(model)
                compile_casts(model)
            tokens = torch.zeros(micro_batch, spec.sequence_length, dtype=torch.int64)
            traffic.paused = False
            loss.loss_sum(model, tokens, tokens, scale=1.0, compiled=compile)[0].backward()
    return Passes(traffic.operations, traffic.bytes, calls)


@contextmanager
def _noted(calls: Counter[Call], traffic: Traffic) -> Iterator[None]:
    """Note calls of compiled pieces in place of compiling them."""
    real = compiled._compiled

    def stand_in(piece: Callable[..., Any], device_type: str) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            gradients = torch.is_grad_enabled()
            calls[Call(piece, tuple(_described(a, gradients) for a in arguments))] += 1
            return _Opaque.apply(piece, traffic, *arguments)

        return called

    compiled._compiled = stand_in  # type: ignore[assignment]
    try:
        yield
    finally:
        compiled._compiled = real


def _described(argument: Any, gradients: bool) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    needed = gradients and argument.requires_grad
    return Operand(tuple(argument.shape), argument.stride(), argument.dtype, needed)


class _Opaque(torch.autograd.Function):
    """A piece whose operations are not counted; its gradients have the right shapes and no meaning."""

    @staticmethod
    def forward(ctx: Any, piece: Callable[..., Any], traffic: Traffic, *arguments: Any) -> Any:
        ctx.traffic, ctx.arguments = traffic, arguments
        traffic.paused = True
        out = piece(*arguments)
        traffic.paused = False
        return out

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        ctx.traffic.paused = True
        gradients = [
            torch.empty_like(a) if isinstance(a, Tensor) and a.is_floating_point() else None for a in ctx.arguments
        ]
        ctx.traffic.paused = False
        return None, None, *gradients
