"""What a weight format is: the contract between the formats and everything that stores weights.

A format turns float32 values into what is really kept in memory (`Encoded`: codes, block scales, a tensor scale)
and back. It is the only place that knows a grid; `mpadam.optim.store` is the only place that calls `encode`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Rounding = Literal["nearest", "stochastic"]
RoundingOn: TypeAlias = "Callable[[Tensor, Tensor | None], Tensor]"
"""(float32 [*shape], int32 bits [*shape] or None) -> the values of a format that these round to, float32 [*shape]"""


@dataclass(frozen=True)
class Encoded:
    """A tensor as it is stored.

    tensors: name -> stored tensor (`codes`, and `scales`, `tensor_scale` where the format has them). Everything that
        must survive a checkpoint is here, and nothing else is needed to decode but `shape`.
    shape: shape of the original tensor (packed and padded codes do not tell it).
    """

    tensors: Mapping[str, Tensor]
    shape: torch.Size

    @property
    def codes(self) -> Tensor:
        return self.tensors["codes"]

    @property
    def nbytes(self) -> int:
        """Bytes of the storage that really holds the tensor: codes, scales and tensor scale."""
        return sum(t.untyped_storage().nbytes() for t in self.tensors.values())


class Format:
    """fp32, bf16, FP8 in blocks, NVFP4 (docs/algorithm.md, "Formats"); see `mpadam.numerics.formats`.

    name: as in checkpoints.
    dtype: whose tensors *are* this format (fp32, bf16), or None where codes are stored.
    block: (rows, columns) of the weights that share a scale; (1, 1) where none do.
    whole: whether `encode` looks at the whole tensor, so that a shard cannot be encoded by itself.
    """

    dtype: torch.dtype | None = None
    whole = False

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def block(self) -> tuple[int, int]:
        return (1, 1)

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        """Round float32 `x` [*shape] to the format.

        bits: int32 [*shape], 32 uniform random bits per element; required if and only if rounding is stochastic.
        previous: what is stored now. NVFP4 looks at its tensor scale, and formats whose scales are no powers of two
            look at it under stochastic rounding, so that what has not changed keeps its scale and does not move.
        """
        raise NotImplementedError

    def decode(self, encoded: Encoded, dtype: torch.dtype | None = None) -> Tensor:
        """The stored values, [*encoded.shape], in `dtype` (None: float32); exact in float32."""
        raise NotImplementedError

    def rounding_on(self, encoded: Encoded) -> RoundingOn:
        """Rounding on the scales of `encoded` as they are, to nearest or, with bits, stochastically; saturating."""
        raise NotImplementedError

    def spacing_on(self, encoded: Encoded, x: Tensor) -> Tensor:
        """Distance from |x| to the next larger value on the scales of `encoded`, float32 [*shape] of `x`."""
        raise NotImplementedError


@runtime_checkable
class Flushing(Protocol):
    """A format that may store whole blocks as zeros, and can count them."""

    def count_flushed(self, x: Tensor, encoded: Encoded) -> Tensor:
        """int64 (2,): blocks of float32 `x` that hold a weight other than zero, and those of them that `encoded`, which
        was made of it, holds nothing of."""
