"""What a weight format is: the contract between the formats and everything that stores weights.

A format turns float32 values into what is really kept in memory (`Encoded`: codes, block scales, a tensor scale)
and back. It is the only place that knows a grid; `mpadam.optim.store` is the only place that calls `encode`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Rounding = Literal["nearest", "stochastic"]


@dataclass(frozen=True)
class Encoded:
    """A tensor as it is stored.

    tensors: name -> stored tensor (`codes`, and `scales`, `tensor_scale` where the format has them). Everything that
        must survive a checkpoint is here, and nothing else is needed to decode but `shape`.
    shape: shape of the original tensor (packed and padded codes do not tell it).
    """

    tensors: Mapping[str, Tensor]
    shape: torch.Size = field(default_factory=lambda: torch.Size([]))

    @property
    def codes(self) -> Tensor:
        return self.tensors["codes"]

    @property
    def nbytes(self) -> int:
        """Bytes of the storage that really holds the tensor: codes, scales and tensor scale."""
        return sum(t.untyped_storage().nbytes() for t in self.tensors.values())


@runtime_checkable
class Format(Protocol):
    """fp32, bf16, FP8 in blocks, NVFP4 (paper.md section 3)."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> torch.dtype | None:
        """The torch dtype whose tensors *are* this format (fp32, bf16), or None where codes are stored."""
        ...

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        """Round float32 `x` (any shape) to the format.

        bits: int32, shape of `x`, 32 uniform random bits an element; required if and only if rounding is stochastic.
        previous: what is stored now. NVFP4 looks at its tensor scale, and formats whose scales are no powers of two
            look at it under stochastic rounding, so that what has not changed keeps its scale and does not move.
        """
        ...

    def decode(self, encoded: Encoded, dtype: torch.dtype = torch.float32) -> Tensor:
        """The stored values, shape `encoded.shape`, in `dtype`; exact in float32."""
        ...
