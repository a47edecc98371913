"""The formats that are torch dtypes (fp32, bf16), and the names of all formats."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import torch
from torch import Tensor

from mpadam.numerics.base import Encoded, Format, Rounding
from mpadam.numerics.fp8 import Fp8Blocks
from mpadam.numerics.nvfp4 import NvFp4
from mpadam.numerics.rounding import check_rounding, convert, round_bf16


@dataclass(frozen=True)
class Fp32:
    """float32: nothing is rounded, in either rounding."""

    @property
    def name(self) -> str:
        return "fp32"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        """A copy of `x`; see base.Format."""
        check_rounding(x, rounding, bits)
        return Encoded({"codes": x.detach().clone(memory_format=torch.contiguous_format)}, x.shape)

    def decode(self, encoded: Encoded, dtype: torch.dtype = torch.float32) -> Tensor:
        return convert(encoded.codes, dtype)


@dataclass(frozen=True)
class Bf16:
    """bfloat16, rounded by `round_bf16`."""

    @property
    def name(self) -> str:
        return "bf16"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        """`round_bf16(x, rounding, bits)`; see base.Format."""
        return Encoded({"codes": round_bf16(x, rounding, bits).contiguous()}, x.shape)

    def decode(self, encoded: Encoded, dtype: torch.dtype = torch.float32) -> Tensor:
        return encoded.codes.to(dtype)


FORMATS: dict[str, Format] = {
    "fp32": Fp32(),
    "bf16": Bf16(),
    "fp8_e4m3": Fp8Blocks(fmt="e4m3"),
    "fp8_e5m2": Fp8Blocks(fmt="e5m2"),
    "nvfp4": NvFp4(tensor_scale="amax"),
    "nvfp4_sticky": NvFp4(tensor_scale="pow2_sticky"),
}


def get_format(name: str | Format) -> Format:
    """The format called `name`; a format object is returned as it is. ValueError with the nearest names."""
    if not isinstance(name, str):
        return name
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, n=3, cutoff=0.3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"weight format {name!r} is unknown: {hint}There are {', '.join(FORMATS)}")
    return FORMATS[name]
