"""The FP8 linear layer: y = x W^T with all three matrix products in FP8.

    forward          y  = x_q  W_q^T        e4m3 x e4m3
    input gradient   dx = dy_q W_q          e5m2 x e4m3
    weight gradient  dW = dy_q^T x_q        e5m2 x e4m3

How sums are accumulated depends on the backend (docs/fp8.md). x, y and the gradients keep the dtype that they have
without FP8 (bf16). The parameter is the nn.Linear's own, so names, optimizers and checkpoints see no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

if TYPE_CHECKING:
    from mpadam.model.fp8.compute import TorchFp8


@dataclass(frozen=True)
class Slots:
    """Where the scales of a layer are in the scaling state."""

    input: int
    weight: int
    output_gradient: int


@dataclass(frozen=True)
class Cast:
    """A matrix in FP8: its values, and the float32 scalar to multiply them with."""

    values: Tensor
    inverse: Tensor


class Fp8Linear(nn.Linear):
    """A bias-free nn.Linear computed in FP8, sharing the weight of the layer that it stands for."""

    def __init__(self, linear: nn.Linear, compute: TorchFp8, slots: Slots) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would draw a weight from the global generator
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.register_parameter("bias", None)
        self.compute, self.slots = compute, slots
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features) -> (..., out_features); the leading sizes may be anything, zero too."""
        if not self.compute.enabled:
            return functional.linear(x, self.weight)
        record = self.training and torch.is_grad_enabled()
        x_cast = self.compute.cast_input(x, self.slots.input, record=record)
        w_cast = self.compute.cast_weight(self.weight, self.slots.weight, record=record)
        gradients = (self.compute, self.slots.output_gradient, record)
        y: Tensor = _ScaledProduct.apply(x.reshape(-1, self.in_features), self.weight, (x_cast, w_cast), gradients)
        return y.reshape(*x.shape[:-1], self.out_features)


class _ScaledProduct(torch.autograd.Function):
    """(x (M, K), W (N, K), the same two in FP8, how the gradient is cast) -> y (M, N).

    How the gradient is cast: what the layers share, the slot of the output's gradient, whether its magnitude counts.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, casts: tuple[Cast, Cast], gradients: tuple[TorchFp8, int, bool]
    ) -> Tensor:
        x_cast, w_cast = casts
        ctx.save_for_backward(x_cast.values, x_cast.inverse, w_cast.values, w_cast.inverse)
        ctx.gradients, ctx.dtypes = gradients, (x.dtype, weight.dtype)
        return gradients[0].multiply(x_cast.values, w_cast.values.t(), x_cast.inverse, w_cast.inverse, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x_values, x_inverse, w_values, w_inverse = ctx.saved_tensors
        (compute, slot, record), (x_dtype, w_dtype) = ctx.gradients, ctx.dtypes
        dy_cast = compute.cast_gradient(dy, slot, record=record)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = compute.multiply(dy_cast.values, w_values, dy_cast.inverse, w_inverse, x_dtype)
        if ctx.needs_input_grad[1]:
            dw = compute.multiply(dy_cast.values.t(), x_values, dy_cast.inverse, x_inverse, w_dtype)
        return dx, dw, None, None
