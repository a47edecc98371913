"""Bytes that the plan assumes of elementwise work, against what torch's operations move (issue 18, item 9)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpadam.model.build import build_model
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.model.loss import loss_sum
from mpadam.plan.assumptions import CAST_BYTES
from mpadam.plan.cost import Shape, elementwise_bytes
from mpadam.study.config import ModelConfig
from mpadam.study.spec import ModelSpec

#: Their time is that of their arithmetic.
PRODUCTS = ("mm", "bmm", "addmm", "_scaled_mm", "_scaled_dot_product")
#: They touch what is named of their first operand, which is little.
INDEXED = ("gather", "scatter", "embedding")
SEQUENCES, LENGTH = 8, 64


class Traffic(TorchDispatchMode):
    """Adds up the bytes of what each operation reads and writes, for those that touch memory and are no products."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not name.startswith(PRODUCTS):
            inputs, outputs = tensors((args, kwargs)), tensors(out)
            if name.startswith(INDEXED):
                inputs, outputs = inputs[1:], [] if func._schema.is_mutable else outputs
            shared = {t.untyped_storage().data_ptr() for t in inputs}
            is_view = all(t.untyped_storage().data_ptr() in shared for t in outputs) and not func._schema.is_mutable
            self.bytes += 0 if is_view else sum(map(size, [*inputs, *outputs]))
        return out


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def size(tensor: torch.Tensor) -> int:
    """Bytes of the memory behind a tensor; an expanded one is smaller than it looks."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * torch.Size(length for length, stride in pairs if stride).numel()


def counted(model: ModelConfig, vocab_size: int, backend: str | None) -> float:
    """Bytes for each position of a forward and backward pass in bf16."""
    sizes = model.model_dump(include={"hidden_size", "intermediate_size", "layers", "heads"})
    spec = ModelSpec(**sizes, vocab_size=vocab_size, sequence_length=LENGTH, attention="sdpa")
    torch_model = build_model(spec, seed=0).to(torch.bfloat16)
    if backend is not None:
        convert_to_fp8(torch_model, backend=backend)
    tokens = torch.zeros(SEQUENCES, LENGTH, dtype=torch.int64)
    with Traffic() as traffic:
        loss_sum(torch_model, tokens, tokens, scale=1.0)[0].backward()
    return traffic.bytes / tokens.numel()


def planned(model: ModelConfig, vocab_size: int, backend: str | None) -> float:
    return elementwise_bytes(Shape(model, vocab_size, LENGTH), backend)


@pytest.mark.parametrize("backend", [None, "native", "emulated"])
def test_bytes_of_a_layer_are_those_that_its_operations_read_and_write(backend: str | None) -> None:
    small = ModelConfig(hidden_size=128, intermediate_size=352, layers=1, heads=2, steps_1x=1)
    three = small.model_copy(update={"layers": 3})
    found, assumed = (of(three, 64, backend) - of(small, 64, backend) for of in (counted, planned))
    weights = 2 * Shape(small, 64, LENGTH).low_precision_parameters / (SEQUENCES * LENGTH)
    casts_of_weights = 0.0 if backend is None else CAST_BYTES[backend] * weights  # few where positions are many
    assert found == pytest.approx(assumed + casts_of_weights, rel=0.1)


def test_bytes_of_the_loss_are_those_that_its_operations_read_and_write() -> None:
    small = ModelConfig(hidden_size=64, intermediate_size=64, layers=1, heads=2, steps_1x=1)
    found, assumed = (of(small, 8192, None) - of(small, 4096, None) for of in (counted, planned))
    assert found == pytest.approx(assumed, rel=0.1)
