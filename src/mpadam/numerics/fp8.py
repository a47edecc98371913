"""FP8 in blocks: one byte per weight and one scale per block (docs/algorithm.md, (37)).

    encoded = Fp8Blocks(fmt="e5m2", block_size=256, power_of_two_scale=True).encode(w32)
    w32 = Fp8Blocks().decode(encoded)

What is stored: `codes`, uint8 of the tensor's shape (the bytes of torch.float8_*: as uint8 they survive every
checkpoint format and collective), and `scales`, one per block: the biased exponent as uint8 (s = 2**(byte - 127)) for
powers of two, else float16.

The scale of a block is the smallest one with `amax <= fmt_max * scale`: rounded *up*, for a scale rounded to nearest
saturates the largest weight of half of the blocks and so biases it. Where rounding to nearest takes the largest weight
down so far that the next smaller scale holds it, that scale is stored: the values lose nothing, and encoding what was
decoded gives back every code and scale. A float16 scale is at least 2**-24 and at most 65504 (above it values
saturate).

Stochastic rounding keeps the scales of `previous` and moves them by powers of two only, so that no weight leaves its
grid because another one has grown. A scale is halved as often as the block's largest weight allows. It is doubled where
stochastic rounding, on the grid continued beyond the largest code, takes a weight there: the smaller the update, the
rarer. Weights are right in the mean; only those that are subnormal codes are drawn again when their scale doubles. A
float16 scale below 2**-14 may have no half: then it is kept until the block has shrunk by a factor of 8 and is rounded
up, which draws the block again.

NaN stays NaN and Inf becomes NaN, each at its own place; the other weights of the block keep their values, since the
scale is that of the finite ones. A block of zeros has the smallest scale, decodes to zeros and leaves zero freely.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mpadam.numerics.base import Encoded, Format, Rounding, RoundingOn
from mpadam.numerics.blocks import (
    MIN_SCALE_EXPONENT,
    computed_once,
    divide,
    doublings,
    finite_amax,
    from_blocks,
    halvings,
    keeps_shape,
    power_of_two_scale,
    scale_blocks,
    scale_each,
    scales_shape,
    to_blocks,
)
from mpadam.numerics.grids import (
    FP16,
    continued,
    get_grid,
    reciprocal_of_power_of_two,
    round_on_scale,
    round_to_grid,
    saturating_cast,
    spacing,
    step,
)
from mpadam.numerics.rounding import check_rounding, convert, is_finite

_FP16_MIN = 2.0**-24


@dataclass(frozen=True)
class Fp8Blocks(Format):
    """FP8 with a scale for each tile of `block_rows` x `block_size` of the last two dimensions.

    fmt: "e5m2" (the reference command) or "e4m3".
    power_of_two_scale: True stores 1-byte exponents, False float16 scales.
    block_rows: 1 for blocks along rows, more for tiles.
    """

    fmt: str = "e5m2"
    block_size: int = 256
    power_of_two_scale: bool = True
    block_rows: int = 1

    def __post_init__(self) -> None:
        get_grid(self.fmt, ("e4m3", "e5m2"))
        for key in ("block_size", "block_rows"):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{key}={value!r}: give a whole number from 1, such as 256")

    @property
    def block(self) -> tuple[int, int]:
        return self.block_rows, self.block_size

    @property
    def name(self) -> str:
        """`fp8_e5m2`, and what is not the default."""
        block = f"-b{self.block_size}" if self.block_rows == 1 else f"-{self.block_rows}x{self.block_size}"
        return f"fp8_{self.fmt}{'' if block == '-b256' else block}{'' if self.power_of_two_scale else '-fp16scale'}"

    def encode(
        self, x: Tensor, *, rounding: Rounding = "nearest", bits: Tensor | None = None, previous: Encoded | None = None
    ) -> Encoded:
        """Codes and scales of float32 `x`, any shape; see base.Format.

        previous: stochastic rounding starts from its scales (see the module).
        """
        check_rounding(x, rounding, bits)
        x, bits = computed_once(x.detach()), None if bits is None else computed_once(bits)
        blocks, drawn = to_blocks(x, self.block), None if bits is None else to_blocks(bits, self.block)
        if drawn is None or previous is None:
            scale = self._choose_scale(finite_amax(blocks), rounding)
        else:
            scale = self._moved_scale(blocks, drawn, previous)
        scale = computed_once(scale)
        scales = self._pack_scale(scale.reshape(scales_shape(x.shape, self.block)))
        if keeps_shape(x, self.block):
            scaled = self._scaled(x, scale_each(scale, x.shape, self.block))
            codes = saturating_cast(scaled, self.fmt, rounding, bits).view(torch.uint8)
        else:
            codes = saturating_cast(self._scaled(blocks, scale), self.fmt, rounding, drawn).view(torch.uint8)
            codes = from_blocks(codes, x.shape)
        return Encoded({"codes": codes, "scales": scales}, x.shape)

    def decode(self, encoded: Encoded, dtype: torch.dtype | None = None) -> Tensor:
        """codes * scale; exact in float32, and in bf16 where the scales are powers of two."""
        grid, scale = get_grid(self.fmt), self._scale_of(encoded)
        assert grid.dtype is not None
        codes = encoded.codes.view(grid.dtype).to(torch.float32)
        if keeps_shape(codes, self.block):
            return convert(codes * scale_each(scale, encoded.shape, self.block), dtype)
        return convert(computed_once(from_blocks(to_blocks(codes, self.block) * scale, encoded.shape)), dtype)

    def rounding_on(self, encoded: Encoded) -> RoundingOn:
        return partial(round_on_scale, scale=self._scale_each(encoded), grid=get_grid(self.fmt))

    def spacing_on(self, encoded: Encoded, x: Tensor) -> Tensor:
        scale = self._scale_each(encoded)
        return spacing(divide(x, scale), self.fmt) * scale

    def _scale_each(self, encoded: Encoded) -> Tensor:
        """The scale of every weight, float32 [*shape]."""
        one = torch.ones((), dtype=get_grid(self.fmt).dtype, device=encoded.codes.device).view(torch.uint8)
        return self.decode(Encoded({**encoded.tensors, "codes": one.expand_as(encoded.codes)}, encoded.shape))

    def _scale_of(self, encoded: Encoded) -> Tensor:
        """float32 scales, in the shape that broadcasts with blocks."""
        stored = encoded.tensors["scales"]
        if self.power_of_two_scale:
            scale = (stored.to(torch.int32) << 23).view(torch.float32)
        else:
            scale = stored.to(torch.float32)
        return scale_blocks(scale, encoded.shape, self.block)

    def _scaled(self, blocks: Tensor, scale: Tensor) -> Tensor:
        return blocks * reciprocal_of_power_of_two(scale) if self.power_of_two_scale else divide(blocks, scale)

    def _moved_scale(self, blocks: Tensor, bits: Tensor, previous: Encoded) -> Tensor:
        """The scale of `previous`, moved by powers of two where the weights ask for it (see the module)."""
        grid, stored = get_grid(self.fmt), self._scale_of(previous)
        scale = stored * halvings(stored, finite_amax(blocks), grid.max)
        if self.power_of_two_scale:
            bounds = (2.0**MIN_SCALE_EXPONENT, 2.0 ** (128 - math.frexp(grid.max)[1]))
        else:
            bounds = (_FP16_MIN, FP16.max)
            exact = scale
            for _ in range(2):
                exact = torch.where(_float16_up(exact) == exact, exact, 2 * exact)
            scale = torch.where(_float16_up(exact) == exact, exact, _float16_up(scale))
        scale = computed_once(scale.clamp(min=bounds[0]))
        scaled = torch.where(is_finite(blocks), self._scaled(blocks, scale), 0.0)
        rounded = round_to_grid(scaled, continued(grid), "stochastic", bits)
        return (scale * doublings(rounded, grid.max)).clamp(max=bounds[1])

    def _choose_scale(self, amax: Tensor, rounding: Rounding) -> Tensor:
        grid = get_grid(self.fmt)
        if self.power_of_two_scale:
            scale = power_of_two_scale(amax, grid.max)
            lower = (scale / 2).clamp(min=2.0**MIN_SCALE_EXPONENT)
        else:
            scale, lower = _float16_scales(amax, grid.max)
        if rounding == "stochastic":
            return scale
        rounded = round_to_grid(divide(amax, scale), grid) * scale
        return torch.where(rounded <= grid.max * lower, lower, scale)

    def _pack_scale(self, scale: Tensor) -> Tensor:
        if self.power_of_two_scale:
            return (scale.view(torch.int32) >> 23).to(torch.uint8)
        return scale.to(torch.float16)


def _float16_scales(amax: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """The smallest float16 s in [2**-24, 65504] with amax <= limit * s, and the one below it, as float32."""
    near = round_to_grid(amax * (1.0 / limit), FP16)
    # limit * near is exact: 3 bits times 11 bits.
    scale = torch.where(near * limit < amax, near + step(near, FP16), near).clamp(_FP16_MIN, FP16.max)
    return scale, (scale - step(scale, FP16)).clamp(min=_FP16_MIN)


def _float16_up(x: Tensor) -> Tensor:
    """The smallest float16 value that is not less than `x`, as float32."""
    near = round_to_grid(x, FP16)
    return torch.where(near < x, near + step(near, FP16), near)
