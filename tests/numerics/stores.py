"""Writes to a weight store as the optimizer makes them: the plan's pure write, put in place."""

from __future__ import annotations

from torch import Tensor

from mpadam.optim.store import WeightStore


def bits_of(store: WeightStore, t: int) -> Tensor | None:
    """int32, shape of the parameter: the random bits of update `t`."""
    draw = store.draw(t)
    return None if draw is None else draw.bits(store.shape, store.param.device)


def write(store: WeightStore, w32: Tensor, delta: Tensor, t: int) -> None:
    """Store `w32 + delta` as update `t`, and refresh the compute copy."""
    new = store.plan.write(store.tensors, w32, delta, bits_of(store, t)).tensors
    for name, tensor in store.tensors.items():
        tensor.copy_(new[name])
    store.refresh_copy()
