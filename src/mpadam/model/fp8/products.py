"""Casting to FP8 and multiplying FP8 matrices, natively and emulated.

    cast(x, scale, amax, fmt)                  -> x * scale rounded to nearest in `fmt`, ties to even, saturating
    multiply(a, b, inverse_a, inverse_b, dtype) -> (a @ b) * inverse_a * inverse_b, rounded to `dtype` once

`native` keeps 1-byte tensors and calls torch's scaled matrix product, which a GPU runs in FP8 (compute capability 8.9
on), without fast accumulation: partial sums, which have fewer bits, are promoted to float32 at intervals. `emulated`
runs anywhere: every FP8 value is a bf16 value, so a bf16 product summed in float32 has the same terms. It rounds with
float32 additions, a third of the time of casting to torch's FP8 dtypes and back on a CPU.

Both round alike, bit for bit, and like `mpadam.numerics.saturating_cast`: finite values saturate, Inf and NaN become
NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mpadam.numerics import saturating_cast
from mpadam.numerics.grids import Grid, get_grid

ALIGNMENT = 16  # sizes of a scaled product's operands are multiples of this
_EXPONENT_FIELD = 0x7F800000
_FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Product:
    """A way to compute FP8 products, see the module.

    whole: cast(x, scale, fmt) -> what `cast` and `magnitude` give; a function that torch.compile can take.
    """

    cast: Callable[[Tensor, Tensor, Tensor, str], Tensor]
    multiply: Callable[[Tensor, Tensor, Tensor, Tensor, torch.dtype], Tensor]
    whole: Callable[[Tensor, Tensor, str], tuple[Tensor, Tensor]] | None = None


def magnitude(x: Tensor) -> Tensor:
    """max |x|, a float32 scalar: 0 of nothing, not finite where a value is not."""
    if x.numel() == 0:
        return torch.zeros((), device=x.device)
    low, high = torch.aminmax(x.detach())
    return torch.maximum(-low, high).float()


# --- emulated --------------------------------------------------------------------------------------------------------


def emulated_cast(x: Tensor, scale: Tensor, amax: Tensor, fmt: str) -> Tensor:
    """The FP8 values of `x * scale` in the dtype of `x`, which holds them exactly.

    amax: magnitude(x); where nothing exceeds the format, nothing needs to be clamped.
    """
    grid, factor = get_grid(fmt), scale.item()
    peak = amax.item() * factor
    scaled = x.detach().to(torch.float32, copy=True).mul_(factor)
    if not peak <= _FLOAT32_MAX:  # NaN, Inf or overflow: rare, so it may be slow
        return saturating_cast(scaled, fmt).to(x.dtype)
    if peak > grid.max:
        scaled.clamp_(-grid.max, grid.max)
    return _round_nearest_(scaled, grid).to(x.dtype)


def _round_nearest_(x: Tensor, grid: Grid) -> Tensor:
    """Round finite float32 `x` within the grid's range to the grid, in place, but for the sign of zero.

    With u the grid's spacing at x, 1.5 * 2**23 * u is a float32 whose own spacing is u: adding it to x rounds x to a
    multiple of u, to nearest and to even, and subtracting it again is exact.
    """
    smallest = (grid.min_exponent + 127) << 23
    binade = x.view(torch.int32).bitwise_and(_EXPONENT_FIELD).clamp_min_(smallest).view(torch.float32)
    shift = 1.5 * 2.0 ** (23 - grid.mantissa_bits)
    return x.add_(binade, alpha=shift).sub_(binade, alpha=shift)


def emulated_multiply(a: Tensor, b: Tensor, inverse_a: Tensor, inverse_b: Tensor, dtype: torch.dtype) -> Tensor:
    """(M, K) times (K, N) in the dtype of the operands; the scales enter before the one rounding of the result."""
    out = a.new_empty(a.shape[0], b.shape[1])  # beta=0: not read. Out of place, addmm would copy it first
    return out.addmm_(a, b, beta=0, alpha=inverse_a.item() * inverse_b.item()).to(dtype)


# --- native ----------------------------------------------------------------------------------------------------------


def native_cast(x: Tensor, scale: Tensor, amax: Tensor, fmt: str) -> Tensor:
    """`x * scale` as torch.float8_*; `amax` is not needed: nothing leaves the device."""
    return saturating_cast(x.detach().float() * scale, fmt)


def native_whole(x: Tensor, scale: Tensor, fmt: str) -> tuple[Tensor, Tensor]:
    """`native_cast` and `magnitude` of the same values, in as few kernels as torch.compile can."""
    return saturating_cast(x.float() * scale, fmt), x.abs().amax().float()


def native_multiply(a: Tensor, b: Tensor, inverse_a: Tensor, inverse_b: Tensor, dtype: torch.dtype) -> Tensor:
    """(M, K) times (K, N) of torch.float8_* by torch's scaled product.

    It wants the first operand row by row, the second column by column, and sizes that are multiples of 16: other
    sizes are filled up with zeros, which add nothing, and the result is cut.
    """
    rows, columns = a.shape[0], b.shape[1]
    if 0 in (*a.shape, *b.shape):
        return torch.zeros(rows, columns, dtype=dtype, device=a.device)
    first, second = _filled_up_codes(a), _filled_up_codes(b.t()).t()
    product = torch._scaled_mm(first, second, inverse_a, inverse_b, out_dtype=dtype, use_fast_accum=False)
    return product[:rows, :columns]


def _filled_up_codes(x: Tensor) -> Tensor:
    """Of torch.float8_*, row by row in memory; code 0 is the number 0."""
    return filled_up(x.view(torch.uint8)).contiguous().view(x.dtype)


def filled_up(x: Tensor) -> Tensor:
    """The matrix `x` with both sizes filled up to multiples of 16 with zeros; differentiable."""
    missing = [-size % ALIGNMENT for size in x.shape]
    return pad(x, (0, missing[1], 0, missing[0])) if any(missing) else x


PRODUCTS = {
    "native": Product(native_cast, native_multiply, native_whole),
    "emulated": Product(emulated_cast, emulated_multiply),
}
