"""NVFP4: half a byte per weight, one byte per block of 16, one float32 per tensor (docs/algorithm.md, (38)).

    weight = code (e2m1) * block scale (e4m3) * tensor scale

    encoded = NvFp4(tensor_scale="amax").encode(w32)
    encoded = NvFp4(tensor_scale="pow2_sticky").encode(w32, previous=encoded)

What is stored: `codes`, uint8, two weights a byte along the last dimension, the first in the low half; the last byte
of a row of odd length has a zero in its high half. `scales`, uint8, the bytes of torch.float8_e4m3fn, one a block.
`tensor_scale`, float32, 0-d.

Tensor scale. `amax` is NVIDIA's: amax / 2688 (= 6 * 448). It ties all weights together under rounding to nearest:
raising the largest by 1% raises every other by about 1%. `pow2_sticky` is the smallest power of two with amax <=
2688 * s, kept from `previous` until it overflows or amax < 2688 * s / 4; changing a weight then moves none outside its
block, unless the tensor scale itself has to change, and a decoded value is exact in bf16.

Block scale. block amax / 6 in units of the tensor scale, at least 2**-6 (the smallest normal e4m3: coarser scales
would not be stable, and a zero scale would trap a block at zero), rounded to nearest as NVIDIA's. So a block that is
small enough compared with the tensor's largest weight becomes zeros (`count_flushed`).

Stochastic rounding keeps the scales of `previous` and moves them by powers of two only, so that no weight leaves its
grid because another one has grown. A block scale is halved as often as the block's largest weight allows. It is doubled
where stochastic rounding, on the grid 0 .5 1 1.5 2 3 4 6 8 12 ..., takes a weight beyond 6: the smaller the update, the
rarer. Weights are right in the mean; only codes .5 and 1.5 are drawn again when their block's scale doubles. The tensor
scale is doubled when a block scale would pass 448, and made smaller when all of them are at most 112; the block scales
move the other way, so that only blocks at the smallest scale notice. Without `previous` block scales are rounded up.

NaN or Inf: e2m1 has neither, so the block that holds one gets a NaN scale and decodes to NaN whole; other blocks, and
the tensor scale, do not notice. Zeros are exact, and their block can leave zero.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from mpadam.numerics.base import Encoded, Format, Rounding, RoundingOn
from mpadam.numerics.blocks import (
    MIN_SCALE_EXPONENT,
    computed_once,
    divide,
    doublings,
    finite_amax,
    from_blocks,
    halvings,
    power_of_two_scale,
    scale_blocks,
    scales_shape,
    to_blocks,
)
from mpadam.numerics.grids import (
    E2M1,
    E4M3,
    continued,
    decode_e2m1,
    drawn,
    encode_e2m1,
    encode_e2m1_to_nearest,
    round_on_scale,
    round_to_grid,
    spacing,
)
from mpadam.numerics.rounding import check_rounding, convert, is_finite

TensorScale = Literal["amax", "pow2_sticky"]
_BLOCK = (1, 16)
_LIMIT = E2M1.max * E4M3.max  # 2688
_MAX_TENSOR_SCALE = (2.0**128 - 2.0**106) / _LIMIT  # what it decodes to is a float32, roundings on the way included
_TWO_ONES = 0x22  # the byte of two codes of 1.0
_MIN_BLOCK_SCALE = 2.0**E4M3.min_exponent


@dataclass(frozen=True)
class NvFp4(Format):
    """NVFP4 storage; `tensor_scale`: "amax" (NVIDIA's definition) or "pow2_sticky" (see the module)."""

    tensor_scale: TensorScale = "amax"
    block = _BLOCK
    whole = True  # the tensor scale follows from all weights

    def __post_init__(self) -> None:
        if self.tensor_scale not in get_args(TensorScale):
            raise ValueError(f"tensor_scale={self.tensor_scale!r}: choose one of {', '.join(get_args(TensorScale))}")

    @property
    def name(self) -> str:
        return "nvfp4" if self.tensor_scale == "amax" else "nvfp4_sticky"

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        """Codes, block scales and tensor scale of float32 `x`, any shape; see base.Format.

        previous: what is stored now: sticky tensor scales and stochastic rounding start from it (see the module).
        """
        check_rounding(x, rounding, bits)
        blocks = to_blocks(computed_once(x.detach()), _BLOCK)
        finite = is_finite(blocks.abs().amax(4, keepdim=True))  # the largest of a block is NaN where one is
        values = torch.where(finite, blocks, 0.0)
        bits = None if bits is None else to_blocks(computed_once(bits), _BLOCK)
        if bits is None or previous is None:
            amax = finite_amax(blocks)
            tensor_scale = computed_once(self._choose_tensor_scale(amax, previous))
            scale = _choose_block_scale(amax, tensor_scale, rounding)
        else:
            tensor_scale, scale = _moved_scales(values, bits, previous)
        scale = computed_once(scale)
        codes = self._codes(values, scale, tensor_scale, bits)
        scales = torch.where(finite, scale, torch.nan).to(torch.float8_e4m3fn).view(torch.uint8)
        tensors = {
            "codes": _pack(computed_once(codes), x.shape),
            "scales": scales.reshape(scales_shape(x.shape, _BLOCK)),
            "tensor_scale": tensor_scale,
        }
        return Encoded(tensors, x.shape)

    def decode(self, encoded: Encoded, dtype: torch.dtype | None = None) -> Tensor:
        """code * (block scale * tensor scale), in torchao's order; exact in float32 and bf16 with pow2_sticky."""
        return convert(computed_once(from_blocks(self._decode_blocks(encoded), encoded.shape)), dtype)

    def rounding_on(self, encoded: Encoded) -> RoundingOn:
        return partial(round_on_scale, scale=self._scale_each(encoded), grid=E2M1)

    def spacing_on(self, encoded: Encoded, x: Tensor) -> Tensor:
        scale = self._scale_each(encoded)
        return spacing(divide(x, scale), E2M1.name) * scale

    def _scale_each(self, encoded: Encoded) -> Tensor:
        """The scale of every weight, float32 [*shape]."""
        codes = torch.full_like(encoded.codes, _TWO_ONES)
        return self.decode(Encoded({**encoded.tensors, "codes": codes}, encoded.shape))

    def count_flushed(self, x: Tensor, encoded: Encoded) -> Tensor:
        held = (to_blocks(x, _BLOCK) != 0).any(4)
        lost = held & ~(self._decode_blocks(encoded) != 0).any(4)
        return torch.stack((held.sum(), lost.sum()))

    def _decode_blocks(self, encoded: Encoded) -> Tensor:
        return decode_e2m1(_unpack(encoded.codes)) * (_block_scale(encoded) * encoded.tensors["tensor_scale"])

    def _choose_tensor_scale(self, block_amax: Tensor, previous: Encoded | None) -> Tensor:
        amax = pad(block_amax.flatten(), (0, 1)).amax()  # the zero is for an empty tensor
        if self.tensor_scale == "amax":
            scale = divide(amax, _LIMIT).clamp(2.0**MIN_SCALE_EXPONENT, _MAX_TENSOR_SCALE)
        else:
            scale = power_of_two_scale(amax, _LIMIT)
        if previous is None:
            return scale
        stored = previous.tensors["tensor_scale"]
        if self.tensor_scale == "amax":
            # The amax that `stored` decodes to need not give it back when divided: keep it, or weights that nobody
            # changed would move by an ulp.
            return torch.where(amax == E2M1.max * (E4M3.max * stored), stored, scale)
        return torch.where((amax <= _LIMIT * stored) & (amax >= _LIMIT / 4 * stored), stored, scale)

    def _codes(self, values: Tensor, scale: Tensor, tensor_scale: Tensor, bits: Tensor | None) -> Tensor:
        """4-bit codes of finite blocks in units of their scales."""
        if bits is not None:
            return encode_e2m1(drawn(values, scale * tensor_scale, E2M1, bits))
        if self.tensor_scale == "amax":
            # torchao's order of operations, so that the codes agree at ties too.
            return encode_e2m1_to_nearest(values * divide(divide(torch.ones_like(tensor_scale), tensor_scale), scale))
        return encode_e2m1_to_nearest(divide(values, scale * tensor_scale))


def _moved_scales(values: Tensor, bits: Tensor, previous: Encoded) -> tuple[Tensor, Tensor]:
    """The tensor scale and the block scales of `previous`, moved by powers of two where the weights ask for it."""
    stored = previous.tensors["tensor_scale"]
    scale = _block_scale(previous)
    amax = values.abs().amax((2, 4), keepdim=True)
    scale = torch.where(is_finite(scale), scale, divide(amax, stored))  # a block that was NaN has no scale to keep
    # A zero must not take a scale out of float32; the next update goes on.
    scale = computed_once(scale * halvings(scale * stored, amax, E2M1.max).clamp(min=2.0**-8))
    scale = computed_once(scale * doublings(drawn(values, scale * stored, continued(E2M1), bits), E2M1.max))
    factor = power_of_two_scale(pad(scale.flatten(), (0, 1)).amax(), E4M3.max)  # the zero is for an empty tensor
    factor = torch.where((factor > 1) | (factor <= 0.25), factor, 1.0)
    tensor_scale = computed_once((stored * factor).clamp(2.0**MIN_SCALE_EXPONENT, _MAX_TENSOR_SCALE))
    return tensor_scale, _round_up((scale * divide(stored, tensor_scale)).clamp(_MIN_BLOCK_SCALE, E4M3.max))


def _choose_block_scale(amax: Tensor, tensor_scale: Tensor, rounding: Rounding) -> Tensor:
    scale = divide(divide(amax, E2M1.max), tensor_scale).clamp(_MIN_BLOCK_SCALE, E4M3.max)
    return round_to_grid(scale, E4M3) if rounding == "nearest" else _round_up(scale)


def _round_up(scale: Tensor) -> Tensor:
    """Normal e4m3 values, rounded up, but not for the few ulps by which divisions may have missed a value."""
    drop = (1 << (23 - E4M3.mantissa_bits)) - 1
    return ((scale.view(torch.int32) + (drop - 4)) & ~drop).view(torch.float32)


def _block_scale(encoded: Encoded) -> Tensor:
    """float32 block scales, in units of the tensor scale, in the shape that broadcasts with blocks."""
    return scale_blocks(encoded.tensors["scales"].view(torch.float8_e4m3fn).to(torch.float32), encoded.shape, _BLOCK)


# Eight codes at a time as one integer, the first in its lowest bits (little-endian, as the machines that torch is built
# for): bytes that are picked one by one keep a compiled kernel from vectors.
_EACH_4, _EACH_8, _EACH_16, _LOW_32 = 0x0F0F0F0F0F0F0F0F, 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0xFFFFFFFF


def _pack(codes: Tensor, shape: torch.Size) -> Tensor:
    """Blocks of 4-bit codes (..., 16) as bytes, shape (..., ceil(n / 2))."""
    eight = codes.view(torch.int64)
    for shift, mask in ((4, _EACH_8), (8, _EACH_16), (16, _LOW_32)):
        eight = (eight | eight >> shift) & mask
    return from_blocks(eight.to(torch.int32).view(torch.uint8), _packed_shape(shape))


def _packed_shape(shape: torch.Size) -> torch.Size:
    return torch.Size((*shape[:-1], (shape[-1] + 1) // 2)) if len(shape) else torch.Size((1,))


def _unpack(packed: Tensor) -> Tensor:
    """Blocks of 4-bit codes (..., 16) from bytes."""
    # A copy with no strides or offset of its own: whatever the codes are a part of, eight of them can be one integer.
    blocks = to_blocks(packed.clone(memory_format=torch.contiguous_format), (1, _BLOCK[1] // 2))
    eight = blocks.view(torch.int32).to(torch.int64) & _LOW_32
    for shift, mask in ((16, _EACH_16), (8, _EACH_8), (4, _EACH_4)):
        eight = (eight | eight << shift) & mask
    return eight.view(torch.uint8)
