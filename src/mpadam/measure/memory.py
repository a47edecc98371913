"""Bytes a parameter of the paper's LLaMAs, from optimizers built over their shapes without allocating them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mpadam.llama import PAPER_SIZES
from mpadam.optim.memory import Bytes, bytes_per_parameter
from mpadam.optim.memory_table import llama_parameters
from mpadam.optim.registry import build_optimizer
from mpadam.study.measure import Memory

#: label, optimizer, masters, states, which matrices Apollo-E compresses
_SHOWN = (
    ("AdamW, fp32 masters and states", "adamw", "fp32", "fp32", "projections"),
    ("AdamW", "adamw", "bf16", "bf16", "projections"),
    ("AdamW + Kahan", "adamw-kahan", "bf16", "bf16", "projections"),
    ("M+Adam", "m-plus-adam", "bf16", "bf16", "projections"),
    ("M+Adam, Apollo-E", "m-plus-adam-apollo-e", "bf16", "bf16", "projections"),
    ("M+Adam, Apollo-E on all matrices", "m-plus-adam-apollo-e", "bf16", "bf16", "all_2d"),
)


@dataclass(frozen=True)
class Footprint:
    """What one optimizer holds for one size: bytes per parameter."""

    size: str
    label: str
    optimizer: str
    masters: str
    scope: str
    parameters: int
    bytes: Bytes


def record(found: Footprint) -> dict[str, object]:
    """As measure/memory.json holds it."""
    return {
        **{"model": found.size, "label": found.label, "parameters": found.parameters, "optimizer": found.optimizer},
        **{"masters": found.masters, "apollo_scope": found.scope},
        **{f"{name}_bytes": value for name, value in found.bytes._asdict().items()},
        "total_bytes": found.bytes.total,
    }


def footprints(options: Memory) -> Iterator[Footprint]:
    """Every optimizer for every size."""
    for size in options.sizes:
        for label, optimizer, masters, states, scope in _SHOWN:
            model = llama_parameters(PAPER_SIZES[size])
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            built = build_optimizer(model, optimizer, {}, masters=masters, state_dtype=states, apollo_scope=scope)
            count = PAPER_SIZES[size].parameters()
            yield Footprint(size, label, optimizer, masters, scope, count, bytes_per_parameter(built))
