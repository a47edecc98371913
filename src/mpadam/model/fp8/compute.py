"""FP8 computation of a model with torch alone (`native`, `emulated`): what its FP8 layers share.

Casts are kept while they are valid: that of a weight for a whole step (the weight and its scale change between steps
only), that of an input until the next one (query, key and value have the same input, as have gate and up).
"""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from mpadam.model.compiled import compiled
from mpadam.model.fp8.linear import Cast
from mpadam.model.fp8.products import PRODUCTS, magnitude
from mpadam.model.fp8.scaling import OPERAND_FORMATS, FlushCount, ScalingState, count_flushed
from mpadam.model.products import bf16_products
from mpadam.study.auto import Bf16Products


@dataclass(frozen=True)
class _Kept:
    source: weakref.ref[Tensor]
    version: tuple[int, int]
    slot: int
    cast: Cast
    amax: Tensor

    def is_of(self, x: Tensor, slot: int) -> bool:
        usable = torch.is_inference_mode_enabled() or not self.cast.values.is_inference()
        return usable and self.source() is x and self.version == _version(x) and self.slot == slot


def _version(x: Tensor) -> tuple[int, int]:
    return (x.data_ptr(), 0 if x.is_inference() else x._version)


class TorchFp8:
    """Scaling state and products of one model.

    group: ranks over which what is counted is summed; None: this process alone.
    products: how `emulated` multiplies bf16 matrices; autograd leaves torch's function modes in a backward pass.
    compiled: casts go through torch.compile, where the backend has one that can (`native`).
    enabled: FP8 or not. frozen: magnitudes are not recorded, so nothing that happens changes the state.
    """

    def __init__(
        self,
        backend: str,
        state: ScalingState,
        group: dist.ProcessGroup | None = None,
        products: Bf16Products | None = None,
    ) -> None:
        self.backend, self.state, self.group, self.products = backend, state, group, products
        self._product, self.compiled = PRODUCTS[backend], False
        self.enabled, self.frozen = True, False
        self.flushed: FlushCount | None = None
        self._weights: dict[int, _Kept] = {}
        self._input: _Kept | None = None

    def cast_input(self, x: Tensor, slot: int, *, record: bool) -> Cast:
        """`x` (..., K) in e4m3, (M, K)."""
        if self._input is None or not self._input.is_of(x, slot):
            self._input = self._cast(x, slot, OPERAND_FORMATS["input"])
        return self._take(self._input, record)

    def cast_weight(self, weight: Tensor, slot: int, *, record: bool) -> Cast:
        """`weight` (N, K) in e4m3; once a step."""
        kept = self._weights.get(slot)
        if kept is None or not kept.is_of(weight, slot):
            kept = self._weights[slot] = self._cast(weight, slot, OPERAND_FORMATS["weight"])
        return self._take(kept, record)

    def cast_gradient(self, dy: Tensor, slot: int, *, record: bool) -> Cast:
        """`dy` (M, N) in e5m2; counts what becomes zero where a count is open."""
        kept = self._cast(dy, slot, OPERAND_FORMATS["output_gradient"])
        if self.flushed is not None:
            self.flushed.add(*count_flushed(dy, kept.cast.values))
        return self._take(kept, record)

    def multiply(self, a: Tensor, b: Tensor, inverse_a: Tensor, inverse_b: Tensor, dtype: torch.dtype) -> Tensor:
        """The product of two casts, (M, K) and (K, N), see `mpadam.model.fp8.products`."""
        with bf16_products(self.products):
            return self._product.multiply(a, b, inverse_a, inverse_b, dtype)

    def advance(self) -> None:
        """End a step: new scales, so no cast is valid any more."""
        self.state.advance()
        self._forget_casts()

    def state_dict(self) -> dict[str, Any]:
        return self.state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state.load_state_dict(state)
        self._forget_casts()

    @contextmanager
    def evaluation(self, enabled: bool) -> Iterator[None]:
        """FP8 on or off, and the scaling state frozen."""
        before = self.enabled, self.frozen
        self.enabled, self.frozen = enabled, True
        try:
            yield
        finally:
            self.enabled, self.frozen = before

    def _cast(self, x: Tensor, slot: int, fmt: str) -> _Kept:
        flat, scale, whole = x.detach().reshape(-1, x.shape[-1]), self.state.scale[slot], self._product.whole
        if self.compiled and whole is not None and flat.numel():
            values, amax = compiled(whole, flat.device.type)(flat, scale, fmt)
        else:
            amax = magnitude(x)
            values = self._product.cast(flat, scale, amax, fmt)
        return _Kept(weakref.ref(x), _version(x), slot, Cast(values, self.state.inverse[slot]), amax)

    def _take(self, kept: _Kept, record: bool) -> Cast:
        if record and not self.frozen:  # a kept cast too: it may be evaluation's
            self.state.record(kept.slot, kept.amax)
        return kept.cast

    def _forget_casts(self) -> None:
        self._weights.clear()
        self._input = None
