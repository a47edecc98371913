"""Cutting tensors into blocks that share a scale, and the arithmetic of scales.

Blocks run along the last dimension (or tile the last two); the last block of a row may be short. Zero padding makes
it as long as the others while it is worked on: zeros never enter an amax, and `from_blocks` cuts them off.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

_MANTISSA = (1 << 23) - 1
MIN_SCALE_EXPONENT = -110
"""Scales are at least 2**-110: the product of a scale and the smallest code is a normal float32 (and bf16), so what a
weight that is not subnormal comes to does not depend on whether a device flushes subnormals. Weights far below 2**-110
times the smallest code become zero."""


def to_blocks(x: Tensor, block: tuple[int, int]) -> Tensor:
    """(batch, block rows, rows of a block, blocks a row, block length) of `x`, zero-padded."""
    rows, cols = (1, *x.shape)[-2:] if x.dim() else (1, 1)
    x = x.reshape(math.prod(x.shape[:-2]), rows, cols)
    down, across = -(-rows // block[0]), -(-cols // block[1])
    x = pad(x, (0, across * block[1] - cols, 0, down * block[0] - rows))
    return x.reshape(x.shape[0], down, block[0], across, block[1])


def from_blocks(blocks: Tensor, shape: torch.Size) -> Tensor:
    """The tensor of `shape` that `to_blocks` cut, without the padding, in memory of its own."""
    rows, cols = (1, *shape)[-2:] if len(shape) else (1, 1)
    batch, down, height, across, length = blocks.shape
    if (rows, cols) == (down * height, across * length):
        return blocks.reshape(shape)
    if blocks.device.type != "cpu":
        return blocks.reshape(batch, down * height, across * length)[:, :rows, :cols].contiguous().reshape(shape)
    # as_strided and not a slice: it makes torch.compile write the padded blocks first. Fused with the slice, the loop
    # over a row that is not a multiple of the block loses its tail on the CPU (torch 2.13, pytorch issue 195582).
    strides = (down * height * across * length, across * length, 1)
    unpadded = blocks.contiguous().as_strided((batch, rows, cols), strides)
    return unpadded.clone(memory_format=torch.contiguous_format).reshape(shape)


def scales_shape(shape: torch.Size, block: tuple[int, int]) -> tuple[int, ...]:
    """Shape in which the scales of a tensor of `shape` are stored: one a block, `(1,)` for a 0-d tensor."""
    *rows, cols = shape if len(shape) else (1,)
    across = -(-cols // block[1])
    return (*rows[:-1], -(-rows[-1] // block[0]), across) if rows else (across,)


def scale_blocks(scales: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """Stored scales of a tensor of `shape`, in the shape that broadcasts with its blocks."""
    rows = shape[-2] if len(shape) > 1 else 1
    down, across = -(-rows // block[0]), scales.shape[-1]
    return scales.reshape(math.prod(shape[:-2]), down, 1, across, 1)


def keeps_shape(x: Tensor, block: tuple[int, int]) -> bool:
    """Whether the arithmetic on `x` and its scales is best done in its own shape: on a GPU, where blocks are short.

    Padded blocks and what is cut out of them are different loops to a compiler: blocks would be written to memory.
    """
    rows, cols = (1, *x.shape)[-2:] if x.dim() else (1, 1)
    return x.device.type != "cpu" and bool(rows % block[0] or cols % block[1])


def scale_each(scale: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """The scale of each weight, in the tensor's `shape`, from scales that broadcast with blocks."""
    return from_blocks(scale.expand(-1, -1, block[0], -1, block[1]), shape)


def computed_once(x: Tensor) -> Tensor:
    """`x`, on a CPU in memory of its own, where a compiled kernel then writes it once and reads it afterwards.

    Otherwise a kernel would compute a block's scale again for every few elements, the weight for every pass over it,
    and would cut its vectors to the length of a block, which takes several times as long. On a GPU it is not needed: an
    FP8 step is two kernels, of which the second holds whole blocks, and three where blocks are short (docs/speed.md
    counts them). as_strided is what makes torch.compile write it (see `from_blocks`).
    """
    if x.device.type != "cpu":
        return x
    dense = x.contiguous()
    return dense.as_strided(dense.shape, dense.stride())


def finite_amax(blocks: Tensor) -> Tensor:
    """Largest finite magnitude of each block, dimensions kept: a NaN or Inf must not spoil its neighbours' scale."""
    magnitude = blocks.abs()
    return torch.where(magnitude < math.inf, magnitude, 0.0).amax((2, 4), keepdim=True)


def power_of_two_scale(amax: Tensor, limit: float) -> Tensor:
    """The smallest power of two s with `amax <= limit * s`, at least 2**MIN_SCALE_EXPONENT.

    It is at most the largest one for which `limit * s` is a float32: above, which is near 3e38, values saturate.
    """
    fraction, exponent = math.frexp(limit)  # limit = 2 * fraction * 2**(exponent - 1), 2 * fraction in [1, 2)
    mantissa = int((2 * fraction - 1) * 2**23)
    # Adding what carries into the exponent exactly where the mantissa of amax is above that of limit.
    biased = (amax.view(torch.int32) + (_MANTISSA - mantissa)) >> 23
    bounds = (MIN_SCALE_EXPONENT + 127, 254 - (exponent - 1))
    return ((biased - (exponent - 1)).clamp(*bounds) << 23).view(torch.float32)


def divide(x: Tensor, y: Tensor | float) -> Tensor:
    """x / y as IEEE float32 rounds it, also on a GPU, where torch multiplies by the reciprocal of a number, and a
    compiled kernel divides approximately.

    float64 has more than twice the digits of float32, so rounding its quotient again gives the same result. Both are
    cast: the quotient of a 0-d float64 and a float32 with dimensions is float32.
    """
    return (x.double() / (y.double() if isinstance(y, Tensor) else y)).float() if x.is_cuda else x / y


def halvings(scale: Tensor, amax: Tensor, limit: float) -> Tensor:
    """The power of two, at most 1, that makes `scale` smallest with `amax <= limit * scale`.

    A floating-point grid with half the scale holds every value of the one before up to half the limit: taking it moves
    no weight.
    """
    return power_of_two_scale(divide(amax, scale), limit).clamp(max=1.0)


def doublings(rounded: Tensor, limit: float) -> Tensor:
    """The power of two, at least 1, by which scales must grow to hold `rounded`: blocks in units of their scale, drawn
    on the grid as it would go on beyond its limit (`grids.continued`).

    A draw takes a weight beyond the limit as often as the weight has grown by: an update moves the scale the more
    rarely the smaller it is, and each weight, the largest too, is right in the mean.
    """
    return power_of_two_scale(rounded.abs().amax((2, 4), keepdim=True), limit).clamp(min=1.0)
