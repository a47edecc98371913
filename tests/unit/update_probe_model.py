"""A model for tests of `mpadam.UpdateProbe`, and a short training of it."""

from __future__ import annotations

import torch
from torch import nn

import mpadam

ALL = 10**6  # elements of each parameter: all of them


class Model(nn.Module):
    """Rows that are longer than a tile and no multiple of it, rows that are shorter, vectors, and a 0-d parameter."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.wide = nn.Parameter(torch.randn(24, 300, generator=generator).to(dtype))
        self.narrow = nn.Parameter(0.02 * torch.randn(7, 3, 24, generator=generator).to(dtype))
        self.bias = nn.Parameter(torch.randn(7, generator=generator).to(dtype))
        self.scalar = nn.Parameter(torch.tensor(1.5, dtype=dtype))

    def give_gradients(self, seed: int, scale: float = 1e-2) -> None:
        generator = torch.Generator().manual_seed(100 + seed)
        for p in self.parameters():
            p.grad = (scale * torch.randn(p.shape, generator=generator)).to(p.dtype)


def probed(optimizer, model, steps=6, **options):
    """The records of a short training with made-up gradients."""
    records = []
    with mpadam.UpdateProbe(optimizer, model, **{"every": 2, "samples": ALL, "out": records.append, **options}):
        for t in range(steps):
            model.give_gradients(t)
            optimizer.step()
    return records


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
