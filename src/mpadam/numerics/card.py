"""What a storage format is declared with. No torch here: a study, its plan and its regimes read cards without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpadam.numerics.base import Format


@dataclass(frozen=True)
class FormatCard:
    """All that is declared of a format.

    name: as `weight_format`.  masters: its alias in regimes.
    home: "module:class" of its `mpadam.numerics.base.Format`, imported when it is built.  arguments: of the class.
    options: fields of a regime that the class takes too.
    bits: of one weight.  block, scale_bits: weights that share a scale, and its bits; 1 and 0 where none do.
    codes: it stores codes in addition to a compute copy; the others have the dtype of the parameter.
    bandwidth: share of the memory bandwidth that an optimizer step reaches, for the cost model: a guess on the careful
        side, since formats that need several passes reach less.
    """

    name: str
    masters: str
    home: str
    bits: int
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    options: tuple[str, ...] = ()
    block: int = 1
    scale_bits: int = 0
    codes: bool = True
    bandwidth: float = 0.2

    @property
    def bytes_per_weight(self) -> float:
        """Of the stored weight, with its share of a block's scale."""
        return (self.bits + self.scale_bits / self.block) / 8

    def build(self, **options: Any) -> Format:
        module, name = self.home.split(":")
        return getattr(import_module(module), name)(**self.arguments, **options)
