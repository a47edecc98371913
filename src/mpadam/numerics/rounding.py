"""Rounding float32 to bfloat16, to nearest or stochastically, right on every bit pattern.

The stochastic trick that is usually copied (add 16 random bits, drop 16 bits) turns some NaN into -0 or Inf and the
largest float32 into Inf, so that a diverged run looks like a healthy one. Here:

| input                         | nearest (ties to even)      | stochastic                                 |
|-------------------------------|-----------------------------|--------------------------------------------|
| NaN, any payload and sign     | NaN                         | NaN                                        |
| +-Inf, +-0                    | kept                        | kept                                       |
| exact in bf16                 | kept                        | kept, whatever the bits                    |
| between two bf16 values       | the nearer                  | one of the two, the mean is the input      |
| above the largest finite bf16 | Inf from half an ulp above  | the largest finite value, with the sign    |
|                               | it on, as the hardware does | (its upper neighbour is not a number)      |
| float32 and bf16 subnormals   | as all others               | as all others                              |

    round_bf16(w32)                                     # nearest
    round_bf16(w32, "stochastic", random_bits(seed=0, step=t, tensor_id=i, shape=w32.shape, device=w32.device))
"""

import math
from typing import get_args

import torch
from torch import Tensor

from mpadam.numerics.base import Rounding

_DROPPED = 0xFFFF  # the 16 bits of a float32 that bf16 lacks


def round_bf16(x: Tensor, rounding: Rounding = "nearest", bits: Tensor | None = None) -> Tensor:
    """Round float32 `x` to bfloat16 of the same shape.

    bits: int32, shape of `x`, uniform; required if and only if rounding is stochastic. The 16 dropped bits are
        compared with 16 random ones, so the probabilities are exact.
    Raises ValueError for another dtype, an unknown rounding, or bits that do not fit.

    The rounding is done in integers, and the cast at the end is exact: torch.compile takes a cast to bf16 that is cast
    back in the same graph (the weight in a Kahan sum) for nothing, and would leave the float32 value unrounded.
    """
    check_rounding(x, rounding, bits)
    x = x.detach()
    finite = is_finite(x)
    pattern = torch.where(finite, x, 0.0).view(torch.int32)
    noise = (_DROPPED >> 1) + ((pattern >> 16) & 1) if bits is None else bits & _DROPPED
    rounded = ((pattern + noise) & ~_DROPPED).view(torch.float32)
    if bits is not None:
        toward_zero = (pattern & ~_DROPPED).view(torch.float32)
        rounded = torch.where(is_finite(rounded), rounded, toward_zero)
    return torch.where(finite, rounded, x).to(torch.bfloat16)


def is_finite(x: Tensor) -> Tensor:
    """torch.isfinite in half of its passes over memory."""
    return x.abs() < math.inf


def convert(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """float32 `x` in `dtype` (None: as it is), to nearest; what the formats decode with."""
    if dtype is None:
        return x
    return round_bf16(x) if dtype is torch.bfloat16 else x.to(dtype)


def check_rounding(x: Tensor, rounding: str, bits: Tensor | None) -> None:
    """The checks that every rounding function of this package makes of its arguments; ValueError with the remedy."""
    if x.dtype is not torch.float32:
        raise ValueError(f"x has dtype {x.dtype}: rounding starts from float32, call x.float() where that is exact")
    if rounding not in get_args(Rounding):
        raise ValueError(f"rounding={rounding!r}: choose one of {', '.join(get_args(Rounding))}")
    if (rounding == "stochastic") != (bits is not None):
        raise ValueError(f"rounding={rounding!r}, bits={'None' if bits is None else 'given'}: stochastic rounding "
                         "needs bits=random_bits(...), nearest takes none")  # fmt: skip
    if bits is not None and (bits.dtype is not torch.int32 or bits.shape != x.shape):
        raise ValueError(f"bits are {bits.dtype} of shape {tuple(bits.shape)}: pass int32 of shape {tuple(x.shape)}")
