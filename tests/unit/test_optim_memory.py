"""docs/memory.md is what the tensors say, and what is computed by hand for Apollo-E."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mpadam import AdamW, MPlusAdam
from mpadam.llama import PAPER_SIZES
from mpadam.optim.memory import Bytes, bytes_per_parameter, parameter_bytes
from mpadam.optim.memory_table import llama_parameters, states_of_size, table

DOCS = Path(__file__).parents[2] / "docs" / "memory.md"


def test_the_table_in_the_docs_is_up_to_date() -> None:
    assert DOCS.read_text() == table(), "run: python -m mpadam.optim.memory_table > docs/memory.md"


@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.float32])
def test_m_plus_adam_is_adamw_and_one_state(state_dtype: torch.dtype) -> None:
    def states(build: type) -> float:
        p = nn.Parameter(torch.zeros(8, 16, dtype=torch.bfloat16))
        return bytes_per_parameter(build([p], state_dtype=state_dtype)).states

    assert states(MPlusAdam) == states(AdamW) + state_dtype.itemsize == 3 * state_dtype.itemsize


@pytest.mark.parametrize(("size", "extra"), [("60m", 1.14), ("130m", 0.74), ("350m", 0.36), ("1b", 0.20)])
def test_apollo_costs_what_the_shapes_say(size: str, extra: float) -> None:
    adamw = states_of_size(size, "adamw")
    assert adamw == 4.0
    assert round(states_of_size(size, "m-plus-adam-apollo-e") - adamw, 2) == extra
    assert states_of_size(size, "m-plus-adam-apollo-e", apollo_scope="all_2d") - adamw < 0.016


@pytest.mark.parametrize("size", PAPER_SIZES)
def test_the_shapes_are_those_of_the_models(size: str) -> None:
    counted = sum(p.numel() for p in llama_parameters(PAPER_SIZES[size]).parameters())
    assert counted == PAPER_SIZES[size].parameters()


def test_bytes_are_counted_by_purpose() -> None:
    """512 weights in fp8 with a scale each 256, a bf16 copy and gradient, two float32 moments and a bf16 carry."""
    p = nn.Parameter(torch.ones(2, 256, dtype=torch.bfloat16))
    optimizer = AdamW([p], weight_format="fp8_e5m2", write_back="kahan", state_dtype="fp32")
    assert parameter_bytes(optimizer, p) == Bytes(weight=512 + 2, compute_copy=1024, gradient=0, states=512 * (8 + 2))
    p.grad = torch.zeros_like(p)
    mean = bytes_per_parameter(optimizer)
    assert mean == Bytes(weight=514 / 512, compute_copy=2.0, gradient=2.0, states=10.0)
    assert mean.total == pytest.approx(514 / 512 + 14)


def test_the_weight_itself_has_no_copy() -> None:
    p, q = (nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32))
    optimizer = AdamW([p, q], state_dtype="bf16")
    assert parameter_bytes(optimizer, p)[:2] == (8, 0)
    assert parameter_bytes(optimizer, q)[:2] == (16, 0)
