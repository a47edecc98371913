"""Gradients of one update: sums in float32, norm in float32, one rounding to the gradient's dtype.

With one micro-batch autograd's own gradient is used. With more, each is added to a float32 sum: in bf16 a thousand
ones add up to 256.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def accumulate_in_float32(parameters: Iterable[nn.Parameter]) -> None:
    """Let autograd cast each gradient to float32 before it adds it to `.grad`."""
    for parameter in parameters:
        parameter.grad_dtype = torch.float32


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Euclidean norm over all gradients, a float32 scalar; not finite if and only if some gradient is not, or huge."""
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_(gradients: list[Tensor], *, norm: float, limit: float | None) -> None:
    """Scale gradients of this norm down to norm `limit`, where they are above it."""
    if limit is not None and norm > limit:
        torch._foreach_mul_(gradients, limit / norm)


def round_to_bf16_(gradients: list[Tensor]) -> None:
    """Round float32 gradients to bf16 values, in place: what `gradient_dtype: bf16` means for sums."""
    for gradient in gradients:
        if gradient.dtype != torch.bfloat16:
            gradient.copy_(gradient.to(torch.bfloat16))
