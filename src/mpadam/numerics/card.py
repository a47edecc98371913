"""What a storage format is declared with. No torch here: a study, its plan and its regimes read cards without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpadam.numerics.base import Format


@dataclass(frozen=True)
class FormatCard:
    """All that is declared of a format.

    name: as `weight_format`.  masters: its alias in regimes.
    bits: of one weight.  block, scale_bits: weights that share a scale, and its bits; 1 and 0 where none do.
    codes: it stores codes beside a compute copy, where others are the dtype of the parameter.
    build: makes the `mpadam.numerics.base.Format`, with the fields of a regime named in `options`.
    bandwidth: share of the memory bandwidth that an optimizer step reaches, for the cost model: a guess on the careful
        side, since formats that need several passes reach less.
    """

    name: str
    masters: str
    bits: int
    build: Callable[..., Format]
    codes: bool = True
    block: int = 1
    scale_bits: int = 0
    options: tuple[str, ...] = ()
    bandwidth: float = 0.2

    @property
    def bytes_per_weight(self) -> float:
        """Of the stored weight, with its share of a block's scale."""
        return (self.bits + self.scale_bits / self.block) / 8
