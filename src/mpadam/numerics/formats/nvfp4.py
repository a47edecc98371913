"""NVFP4 with NVIDIA's tensor scale (amax) or a sticky power of two; the arithmetic is `mpadam.numerics.nvfp4`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from mpadam.numerics.card import FormatCard

if TYPE_CHECKING:
    from mpadam.numerics.base import Format


def _build(tensor_scale: Literal["amax", "pow2_sticky"]) -> Format:
    from mpadam.numerics.nvfp4 import NvFp4

    return NvFp4(tensor_scale)


AMAX = FormatCard(
    "nvfp4", masters="nvfp4", bits=4, build=partial(_build, "amax"), block=16, scale_bits=8, bandwidth=0.2
)
STICKY = FormatCard(
    "nvfp4_sticky",
    masters="nvfp4s",
    bits=4,
    build=partial(_build, "pow2_sticky"),
    block=16,
    scale_bits=8,
    bandwidth=0.25,
)
