"""FP8 in blocks, e5m2 (the reference command) and e4m3; the arithmetic is `mpadam.numerics.fp8`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mpadam.numerics.card import FormatCard

if TYPE_CHECKING:
    from mpadam.numerics.base import Format

_BLOCK = 256
_OPTIONS = ("block_size", "block_rows", "power_of_two_scale")


def _build(fmt: str, *, block_size: int = _BLOCK, block_rows: int = 1, power_of_two_scale: bool = True) -> Format:
    from mpadam.numerics.fp8 import Fp8Blocks

    tile = None if block_rows == 1 else (block_rows, block_size)
    return Fp8Blocks(fmt, block_size, power_of_two_scale, block_shape=tile)


E5M2 = FormatCard(
    "fp8_e5m2",
    masters="fp8",
    bits=8,
    build=partial(_build, "e5m2"),
    block=_BLOCK,
    scale_bits=8,
    options=_OPTIONS,
    bandwidth=0.3,
)
E4M3 = FormatCard(
    "fp8_e4m3",
    masters="fp8e4m3",
    bits=8,
    build=partial(_build, "e4m3"),
    block=_BLOCK,
    scale_bits=8,
    options=_OPTIONS,
    bandwidth=0.3,
)
