"""Samples of a tensor: pieces of its rows, drawn without a generator, so that a probe disturbs none.

A tile is a row, or 256 aligned elements of a longer one (the last tile of a row may be shorter): the blocks of the FP8
formats, and whole blocks of NVFP4, so that a sample can be rounded as the tensor would be. The tiles of a tensor, in
order, are cut into as many equal strata as the sample has tiles, and one is drawn from each: every tile is as likely as
any other, so sums over the sample times `weight` are unbiased.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mpadam.numerics import random_bits

WIDTH = 256


@dataclass(frozen=True)
class Tiles:
    """index: int64 [tiles, width], flat.  inside: bool of that shape, False behind the end of a row; None where all
    are inside.  weight: tiles of the tensor for each of the sample.  size: elements of the sample."""

    index: Tensor
    inside: Tensor | None
    weight: float
    size: int

    def take(self, x: Tensor) -> Tensor:
        """float32 [tiles, width] of `x`, a tensor of the sampled shape; zeros behind the end of a row. A copy."""
        found = x.detach().reshape(-1)[self.index].to(torch.float32)
        return found if self.inside is None else torch.where(self.inside, found, 0.0)


def draw_tiles(x: Tensor, *, size: int, seed: int, step: int, tensor_id: int) -> Tiles:
    """About `size` elements of a tensor that is not empty, at least one tile; a function of the four numbers."""
    columns = x.shape[-1] if x.dim() else 1
    width = min(columns, WIDTH)
    across = -(-columns // width)
    count = x.numel() // columns * across
    sampled = min(count, -(-size // width))
    words = random_bits(seed=seed, step=step, tensor_id=tensor_id, numel=sampled, device="cpu")
    places = torch.arange(sampled, dtype=torch.float64, device="cpu") + (words & 0x7FFFFFFF) * 2.0**-31
    tile = (places * (count / sampled)).to(torch.int64).clamp(max=count - 1).unsqueeze(1)
    column = tile % across * width + torch.arange(width, device="cpu")
    inside = column < columns
    index = tile // across * columns + column.clamp(max=columns - 1)
    held = None if bool(inside.all()) else inside.to(x.device)
    return Tiles(index.to(x.device), held, count / sampled, int(inside.sum()))
