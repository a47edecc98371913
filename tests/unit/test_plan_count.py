"""Bytes that the plan assumes of elementwise work, against what is counted (issue 18, items 6 and 9)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from traffic import passes

from mpadam.llama import PAPER_SIZES
from mpadam.plan.assumptions import EAGER
from mpadam.plan.cost import Shape, elementwise_bytes
from mpadam.study.config import ModelConfig
from mpadam.study.spec import ModelSpec

SEQUENCES, LENGTH = 8, 64


def counted(model: ModelConfig, vocab_size: int, backend: str | None) -> float:
    """Bytes for each position of a forward and backward pass in bf16."""
    sizes = model.model_dump(include={"hidden_size", "intermediate_size", "layers", "heads"})
    spec = ModelSpec(**sizes, vocab_size=vocab_size, sequence_length=LENGTH, attention="sdpa")
    return passes(spec, SEQUENCES, backend, compile=False).bytes / (SEQUENCES * LENGTH)


def planned(model: ModelConfig, vocab_size: int, backend: str | None) -> float:
    return elementwise_bytes(Shape(model, vocab_size, LENGTH), backend, compiled=False)


@pytest.mark.parametrize("backend", [None, "native", "emulated"])
def test_bytes_of_a_layer_are_those_that_its_operations_read_and_write(backend: str | None) -> None:
    small = ModelConfig(hidden_size=128, intermediate_size=352, layers=1, heads=2, steps_1x=1)
    three = small.model_copy(update={"layers": 3})
    found, assumed = (of(three, 64, backend) - of(small, 64, backend) for of in (counted, planned))
    weights = 2 * Shape(small, 64, LENGTH).low_precision_parameters / (SEQUENCES * LENGTH)
    casts_of_weights = 0.0 if backend is None else EAGER.cast[backend] * weights  # few where positions are many
    assert found == pytest.approx(assumed + casts_of_weights, rel=0.1)


def test_bytes_of_the_loss_are_those_that_its_operations_read_and_write() -> None:
    small = ModelConfig(hidden_size=64, intermediate_size=64, layers=1, heads=2, steps_1x=1)
    found, assumed = (of(small, 8192, None) - of(small, 4096, None) for of in (counted, planned))
    assert found == pytest.approx(assumed, rel=0.1)


# --- compiled pieces (item 6) ----------------------------------------------------------------------------------------

#: Kernels of a compiled piece, forward and backward, as counted on a pretended H100 (docs/speed.md).
PIECES = {"norm": 4, "add_norm": 4, "rotary": 2, "gated": 2, "chunk_loss": 2}


def page_rows(model: str, work: str) -> tuple[list[float], float]:
    """Kernels and GB, eager and compiled, and the planned GB, as docs/speed.md has them."""
    page = (Path(__file__).parents[2] / "docs/speed.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^\| {model} \| {work} \| (.*) \|$", page, re.MULTILINE)
    *counts, plan = [float(cell.replace(",", "")) for cell in found.split(" | ")]
    return counts, plan


@pytest.mark.parametrize("model", PAPER_SIZES)
def test_i18_what_is_planned_of_compiled_passes_is_near_the_count_on_the_page(model: str) -> None:
    """Casts of 1b are counted higher: its columns are filled up to multiples of 16."""
    full = Shape(ModelConfig(**vars(PAPER_SIZES[model]), steps_1x=1), 32_000, 256)
    plain, native = (512 * 256 * elementwise_bytes(full, b, compiled=True) / 1e9 for b in (None, "native"))
    for work, planned_gb in (("layers and loss", plain), ("casts", native - plain)):
        (_, _, _, counted_gb), told = page_rows(model, work)
        assert told == round(planned_gb)
        assert planned_gb == pytest.approx(counted_gb, rel=0.35 if (model, work) == ("1b", "casts") else 0.2)


@pytest.mark.slow
def test_i18_the_page_has_the_count_of_a_step() -> None:
    """What needs no Triton: eager operations and bytes, and how often which piece is called."""
    spec = ModelSpec(**vars(PAPER_SIZES["60m"]), vocab_size=32_000, sequence_length=256, attention="sdpa")
    (kernels, gb, compiled_kernels, compiled_gb), _ = page_rows("60m", "layers and loss")
    eager, fused = (passes(spec, 256, None, compile=compile) for compile in (False, True))
    assert (2 * eager.operations, round(2 * eager.bytes / 1e9)) == (kernels, gb)
    pieces = sum(PIECES[call.piece.__name__] * count for call, count in fused.pieces.items())
    assert 2 * (fused.operations + pieces) == compiled_kernels
    assert 2 * fused.bytes / 1e9 < compiled_gb < gb / 4
