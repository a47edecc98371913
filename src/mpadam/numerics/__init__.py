"""Number formats and rounding: see `base` (the contract), `rounding`, `random_bits`, `grids`, `fp8`, `nvfp4`."""

from mpadam.numerics.base import Encoded, Format, Rounding
from mpadam.numerics.formats import FORMATS, Bf16, Fp32, get_format
from mpadam.numerics.fp8 import Fp8Blocks
from mpadam.numerics.grids import decode_table, saturating_cast, spacing
from mpadam.numerics.nvfp4 import NvFp4
from mpadam.numerics.random_bits import random_bits
from mpadam.numerics.rounding import round_bf16

__all__ = [
    "FORMATS",
    "Bf16",
    "Encoded",
    "Format",
    "Fp8Blocks",
    "Fp32",
    "NvFp4",
    "Rounding",
    "decode_table",
    "get_format",
    "random_bits",
    "round_bf16",
    "saturating_cast",
    "spacing",
]
