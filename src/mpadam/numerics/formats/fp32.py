"""float32 masters: nothing is rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpadam.numerics.card import FormatCard

if TYPE_CHECKING:
    from mpadam.numerics.base import Format


def _build() -> Format:
    from mpadam.numerics.plain import Fp32

    return Fp32()


FP32 = FormatCard("fp32", masters="fp32", bits=32, build=_build, codes=False, bandwidth=0.6)
