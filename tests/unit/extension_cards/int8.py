"""Whole numbers from -127 to 127 in blocks of 64 along a row, with a float32 scale each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpadam.numerics.base import Encoded, Format, Rounding, RoundingOn
from mpadam.numerics.card import FormatCard

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = (1, 64)


@dataclass(frozen=True)
class Int8(Format):
    name = "int8"
    block = BLOCK

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        """x: float32 [*shape]; codes int8 [*shape], scales float32, one per block."""
        import torch

        from mpadam.numerics.blocks import scales_shape, to_blocks

        scales = (
            (to_blocks(x, BLOCK).abs().amax((2, 4)) / 127).clamp(min=2.0**-100).reshape(scales_shape(x.shape, BLOCK))
        )
        codes = _codes(x, bits, scale=_of_each(scales, x.shape)).to(torch.int8)
        return Encoded({"codes": codes, "scales": scales}, x.shape)

    def decode(self, encoded: Encoded, dtype: torch.dtype | None = None) -> Tensor:
        values = encoded.codes.float() * _of_each(encoded.tensors["scales"], encoded.shape)
        return values if dtype is None else values.to(dtype)

    def rounding_on(self, encoded: Encoded) -> RoundingOn:
        scale = _of_each(encoded.tensors["scales"], encoded.shape)
        return lambda x, bits: _codes(x, bits, scale=scale) * scale


def _codes(x: Tensor, bits: Tensor | None, *, scale: Tensor) -> Tensor:
    noise = 0.5 if bits is None else (bits & 0xFFFFFF).float() * 2.0**-24
    return (x / scale + noise).floor().clamp(-127, 127)


def _of_each(scales: Tensor, shape: torch.Size) -> Tensor:
    """float32 [*shape]: the scale of every weight."""
    from mpadam.numerics.blocks import from_blocks, scale_blocks, to_blocks

    blocks = to_blocks(scales.new_zeros(shape), BLOCK)
    return from_blocks(scale_blocks(scales, shape, BLOCK).expand_as(blocks), shape)


INT8 = FormatCard("int8", masters="int8", home=f"{__name__}:Int8", bits=8, block=64, scale_bits=32)
