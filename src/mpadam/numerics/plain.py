"""The formats that are torch dtypes: fp32 and bf16."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mpadam.numerics.base import Encoded, Format, Rounding, RoundingOn
from mpadam.numerics.grids import spacing
from mpadam.numerics.rounding import check_rounding, convert, round_bf16


@dataclass(frozen=True)
class Fp32(Format):
    """float32: nothing is rounded, in either rounding."""

    name = "fp32"
    dtype = torch.float32

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        check_rounding(x, rounding, bits)
        return Encoded({"codes": x.detach().clone(memory_format=torch.contiguous_format)}, x.shape)

    def decode(self, encoded: Encoded, dtype: torch.dtype | None = None) -> Tensor:
        return convert(encoded.codes, dtype)

    def rounding_on(self, encoded: Encoded) -> RoundingOn:
        return lambda x, bits: x

    def spacing_on(self, encoded: Encoded, x: Tensor) -> Tensor:
        return spacing(x, self.name)


@dataclass(frozen=True)
class Bf16(Format):
    """bfloat16, rounded by `round_bf16`."""

    name = "bf16"
    dtype = torch.bfloat16

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        return Encoded({"codes": round_bf16(x, rounding, bits).contiguous()}, x.shape)

    def decode(self, encoded: Encoded, dtype: torch.dtype | None = None) -> Tensor:
        return encoded.codes.to(dtype or torch.float32)

    def rounding_on(self, encoded: Encoded) -> RoundingOn:
        return lambda x, bits: round_bf16(x, "nearest" if bits is None else "stochastic", bits).to(torch.float32)

    def spacing_on(self, encoded: Encoded, x: Tensor) -> Tensor:
        return spacing(x, self.name)
