"""bfloat16: the parameter itself is the stored weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpadam.numerics.card import FormatCard

if TYPE_CHECKING:
    from mpadam.numerics.base import Format


def _build() -> Format:
    from mpadam.numerics.plain import Bf16

    return Bf16()


BF16 = FormatCard("bf16", masters="bf16", bits=16, build=_build, codes=False, bandwidth=0.6)
