"""The number grids of FP8 and FP4: e4m3, e5m2, e2m1. Rounding onto them, their spacing, their codes.

A grid has `2**mantissa_bits` values in each binade down to `2**min_exponent`, and the same spacing below (subnormals).
Every step here is exact in float32 (multiplications by powers of two, differences of neighbours, integer compares), so
eager, compiled, CPU and GPU results agree bit for bit.

`saturating_cast` instead of a bare `.to(torch.float8_...)`, whose result out of range depends on the stack:

| input                    | e4m3    | e5m2      |
|--------------------------|---------|-----------|
| finite, at most the max  | rounded | rounded   |
| finite, above            | +-448   | +-57344   |
| +-Inf, NaN               | NaN     | NaN       |

Inf becomes NaN on purpose: a value that is already lost must show, and 448 looks plausible.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mpadam.numerics.base import Rounding
from mpadam.numerics.blocks import divide
from mpadam.numerics.rounding import check_rounding, is_finite

_EXPONENT_FIELD = 0x7F800000
_ONE_EXPONENT = 1 << 23


@dataclass(frozen=True)
class Grid:
    """A floating-point grid: sign, and magnitudes up to `max`."""

    name: str
    mantissa_bits: int
    min_exponent: int
    max: float
    dtype: torch.dtype | None = None


E2M1 = Grid("e2m1", mantissa_bits=1, min_exponent=0, max=6.0)
E4M3 = Grid("e4m3", mantissa_bits=3, min_exponent=-6, max=448.0, dtype=torch.float8_e4m3fn)
E5M2 = Grid("e5m2", mantissa_bits=2, min_exponent=-14, max=57344.0, dtype=torch.float8_e5m2)
FP16 = Grid("fp16", mantissa_bits=10, min_exponent=-14, max=65504.0, dtype=torch.float16)
BF16 = Grid("bf16", mantissa_bits=7, min_exponent=-126, max=torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
FP32 = Grid("fp32", mantissa_bits=23, min_exponent=-126, max=torch.finfo(torch.float32).max, dtype=torch.float32)
GRIDS = {grid.name: grid for grid in (E2M1, E4M3, E5M2, FP16, BF16, FP32)}


def get_grid(name: str, among: tuple[str, ...] = tuple(GRIDS)) -> Grid:
    """The grid called `name`; ValueError with the names that there are."""
    if name not in among:
        raise ValueError(f"fmt={name!r}: choose one of {', '.join(among)}")
    return GRIDS[name]


def continued(grid: Grid) -> Grid:
    """`grid` with its binades going on where it ends, as far as a scale can grow and stay in float32."""
    return replace(grid, max=2.0**118)


def spacing(x: Tensor, fmt: str) -> Tensor:
    """Distance from |x| to the next larger value of the grid (one ulp), float32, shape of `x`.

    Below the smallest normal value it is the spacing of the subnormals, above the largest value that of the last
    binade. For a format with scales: `spacing(x / scale, fmt) * scale`. NaN and Inf give NaN.
    """
    grid = get_grid(fmt)
    return torch.where(torch.isfinite(x), step(x.abs().clamp(max=grid.max), grid), torch.nan)


def round_to_grid(x: Tensor, grid: Grid, rounding: Rounding = "nearest", bits: Tensor | None = None) -> Tensor:
    """The float32 values of `grid` that finite `x` rounds to (ties to even), saturating at `grid.max`; sign kept.

    Stochastic: the two neighbours on the grid, the upper with probability equal to the fraction, from 31 of the 32
    `bits`; a value of the grid never moves.
    """
    magnitude = x.abs().clamp(max=grid.max)
    binade = _binade(magnitude, grid)
    # In two exact products, so that no factor leaves the range of float32 whatever the binade.
    steps = magnitude * _two_over(binade) * 2.0 ** (grid.mantissa_bits - 1)
    if bits is None:
        whole = torch.round(steps)
    else:
        floor = torch.floor(steps)
        threshold = ((steps - floor) * 2.0**31).to(torch.int32)
        whole = floor + ((bits & 0x7FFFFFFF) < threshold)
    return torch.copysign(whole * 2.0**-grid.mantissa_bits * binade, x)


def drawn(values: Tensor, scale: Tensor, grid: Grid, bits: Tensor) -> Tensor:
    """Finite values in units of `scale`, rounded stochastically to `grid`; what is a value of the format stays.

    values, scale: float32, one broadcasts against the other.  bits: int32, shape of `values`.
    """
    scaled = divide(values, scale)
    nearest = round_to_grid(scaled, grid)
    # A product with a scale that is no power of two is rounded, and the quotient is then no code.
    return torch.where(nearest * scale == values, nearest, round_to_grid(scaled, grid, "stochastic", bits))


def round_on_scale(x: Tensor, bits: Tensor | None, *, scale: Tensor, grid: Grid) -> Tensor:
    """The values of grid * scale that float32 `x` [*shape] rounds to, saturating; scale: float32 [*shape]."""
    rounded = round_to_grid(divide(x, scale), grid) if bits is None else drawn(x, scale, grid, bits)
    return rounded * scale


def saturating_cast(x: Tensor, fmt: str, rounding: Rounding = "nearest", bits: Tensor | None = None) -> Tensor:
    """Float32 `x` as torch.float8_e4m3fn (`fmt="e4m3"`) or torch.float8_e5m2 (`"e5m2"`): the table above.

    bits: int32, shape of `x`; required if and only if rounding is stochastic. `.view(torch.uint8)` gives the codes.
    """
    check_rounding(x, rounding, bits)
    grid = get_grid(fmt, ("e4m3", "e5m2"))
    assert grid.dtype is not None
    x = x.detach()
    finite = is_finite(x)
    if bits is not None:
        x = round_to_grid(torch.where(finite, x, 0.0), grid, rounding, bits)
    # Within the range torch's own cast is to nearest, ties to even, on CPU and GPU alike.
    return torch.where(finite, x.clamp(-grid.max, grid.max), torch.nan).to(grid.dtype)


def encode_e2m1(x: Tensor) -> Tensor:
    """4-bit codes (uint8, sign in bit 3) of values that lie on the e2m1 grid: 0 .5 1 1.5 2 3 4 6 are codes 0 to 7."""
    magnitude = x.abs()
    code = torch.minimum(torch.minimum(2 * magnitude, magnitude + 2), magnitude * 0.5 + 4)
    return _signed_code(code, x)


def encode_e2m1_to_nearest(x: Tensor) -> Tensor:
    """`encode_e2m1(round_to_grid(x, E2M1))` of finite `x`: a grid of three spacings needs no access to bits."""
    magnitude = x.abs().clamp(max=E2M1.max)
    upper = torch.where(magnitude < 4, torch.round(magnitude) + 2, torch.round(magnitude * 0.5) + 4)
    return _signed_code(torch.where(magnitude < 2, torch.round(2 * magnitude), upper), x)


def decode_e2m1(codes: Tensor) -> Tensor:
    """float32 values of 4-bit codes: `encode_e2m1` turned round."""
    signed = codes.to(torch.float32)
    negative = signed > 7
    code = torch.where(negative, signed - 8, signed)
    magnitude = torch.maximum(torch.maximum(code * 0.5, code - 2), 2 * code - 8)
    return torch.where(negative, -magnitude, magnitude)


def decode_table(fmt: str) -> Tensor:
    """float32 values of all codes in order: 256 for e4m3 and e5m2 (NaN and Inf included), 16 for e2m1."""
    grid = get_grid(fmt, ("e2m1", "e4m3", "e5m2"))
    if grid.dtype is None:
        return decode_e2m1(torch.arange(16, dtype=torch.uint8))
    return torch.arange(256, dtype=torch.uint8).view(grid.dtype).to(torch.float32)


def step(magnitude: Tensor, grid: Grid) -> Tensor:
    """`spacing` of finite float32 values that are not negative and not above grid.max."""
    return _binade(magnitude, grid) * 2.0**-grid.mantissa_bits


def reciprocal_of_power_of_two(p: Tensor) -> Tensor:
    """1/p, exact without a division (a compiled GPU division is approximate); p from 2**-126 to 2**126."""
    return (254 * _ONE_EXPONENT - p.view(torch.int32)).view(torch.float32)


def _binade(magnitude: Tensor, grid: Grid) -> Tensor:
    """The power of two at or below each magnitude, at least 2**min_exponent."""
    smallest = (grid.min_exponent + 127) * _ONE_EXPONENT
    return (magnitude.view(torch.int32) & _EXPONENT_FIELD).clamp(min=smallest).view(torch.float32)


def _signed_code(code: Tensor, x: Tensor) -> Tensor:
    """Codes 0 to 7, float32, with the sign of `x` in bit 3; as a sum, since a compiled CPU kernel is slow with bits."""
    return (code + (4.0 - torch.copysign(torch.full_like(x, 4.0), x))).to(torch.uint8)


def _two_over(p: Tensor) -> Tensor:
    """2/p for every power of two p from 2**-126 to 2**127."""
    return (255 * _ONE_EXPONENT - p.view(torch.int32)).view(torch.float32)
