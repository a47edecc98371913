"""Bytes per parameter, measured from the tensors that an optimizer really holds.

    bytes_per_parameter(optimizer)      Bytes(weight=2.0, compute_copy=0.0, gradient=2.0, states=6.0)

| column       | what is counted                                                          |
|--------------|--------------------------------------------------------------------------|
| weight       | the stored weight: the parameter itself, or codes and scales, or a master |
| compute copy | the parameter where it is not the weight                                 |
| gradient     | the gradient, where there is one                                         |
| states       | moments, carry of Kahan, persistent shadow                               |
"""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.sharding import local


class Bytes(NamedTuple):
    """Bytes, or bytes per parameter, a number for each purpose."""

    weight: float = 0.0
    compute_copy: float = 0.0
    gradient: float = 0.0
    states: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def parameter_bytes(optimizer: LowPrecisionOptimizer, p: Tensor) -> Bytes:
    """What one parameter takes on this rank; a frozen one takes only itself."""
    if not optimizer.state.get(p):
        return Bytes(weight=_size([local(p)]), gradient=0 if p.grad is None else _size([local(p.grad)]))
    store = optimizer.store_of(p)
    weight = {name: t for name, t in store.tensors.items() if name.startswith("weight.")}
    states = {k: v for k, v in optimizer.state[p].items() if isinstance(v, Tensor) and k not in weight}
    return Bytes(
        weight=_size(weight.values()),
        compute_copy=0 if store.is_weight else _size([store.param]),
        gradient=0 if p.grad is None else _size([local(p.grad)]),
        states=_size(states.values()),
    )


def bytes_per_parameter(optimizer: LowPrecisionOptimizer) -> Bytes:
    """Mean over all parameters of an optimizer; sharded parameters count this rank's part.

    Raises ValueError where there is no element to divide by.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    count = sum(local(p).numel() for p in parameters)
    if count == 0:
        raise ValueError("bytes per parameter of an optimizer without a single element: give it parameters")
    by_purpose = zip(*(parameter_bytes(optimizer, p) for p in parameters), strict=True)
    return Bytes(*(sum(sizes) / count for sizes in by_purpose))
