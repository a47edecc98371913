"""Delayed scaling: which FP8 formats are used where, and how scales follow from past magnitudes.

The recipe of the paper (section 3, "FP8 GEMM"): Transformer Engine's `hybrid` delayed scaling. Inputs and weights are
e4m3 in the forward pass, output gradients e5m2 in the backward pass; a tensor is multiplied by

    scale = fp8_max / (amax * 2**margin),   amax = the largest magnitude of the last `amax_history` steps

before it is cast, so casting needs no pass over the tensor to find its own magnitude first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpadam.numerics.grids import get_grid

Operand = Literal["input", "weight", "output_gradient"]
OPERAND_FORMATS: dict[Operand, str] = {"input": "e4m3", "weight": "e4m3", "output_gradient": "e5m2"}


def largest(operand: Operand) -> float:
    """Largest finite value of the format of an operand: 448 or 57344."""
    return get_grid(OPERAND_FORMATS[operand]).max


@dataclass(frozen=True)
class Fp8Recipe:
    """Hybrid delayed scaling.

    amax_history: optimizer steps whose largest magnitude decides a scale.
    margin: binades left free above that magnitude.
    """

    amax_history: int = 16
    margin: int = 0

    def __post_init__(self) -> None:
        if self.amax_history < 1:
            raise ValueError(f"amax_history = {self.amax_history}: give at least 1 step (the paper has 16)")
        if not 0 <= self.margin <= 8:
            raise ValueError(f"margin = {self.margin}: give 0 to 8 binades (the paper has 0); e4m3 has 15 in all")
