"""Gradients of one update: sums in float32, norm in float32, one rounding to the gradient's dtype.

With one micro-batch autograd's own gradient is used. With more, or with several ranks, each is added to a float32 sum:
in bf16 a thousand ones add up to 256.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from mpadam.training.ranks import Ranks

BUCKET_ELEMENTS = 2**26  # of one collective: 256 MB in float32


def accumulate_in_float32(parameters: Iterable[nn.Parameter]) -> None:
    """Let autograd cast each gradient to float32 before it adds it to `.grad`."""
    for parameter in parameters:
        parameter.grad_dtype = torch.float32


def sum_over_ranks_(gradients: list[Tensor], ranks: Ranks) -> None:
    """Sum each float32 gradient over all ranks, in place; a collective takes many small ones at once."""
    if ranks.size == 1:
        return
    for bucket in _buckets(gradients):
        flat = ranks.sum_(torch.cat([gradient.flatten() for gradient in bucket]))
        parts = flat.split([gradient.numel() for gradient in bucket])
        torch._foreach_copy_(bucket, [part.view_as(g) for part, g in zip(parts, bucket, strict=True)])


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for gradient in gradients:
        assert gradient.dtype == torch.float32
        if bucket and sum(g.numel() for g in bucket) + gradient.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(gradient)
    yield bucket


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Euclidean norm over all gradients, a float32 scalar; not finite if and only if some gradient is not, or huge."""
    if all(_is_plain(gradient) for gradient in gradients):
        norms = [torch.linalg.vector_norm(_SCRATCH.wide(gradient)) for gradient in gradients]
    else:
        norms = list(torch._foreach_norm(gradients, 2, dtype=torch.float32))
    return torch.linalg.vector_norm(torch.stack(norms))


def _is_plain(x: Tensor) -> bool:
    """Of a CPU, and such that a copy in memory that is used again gives the bits, and hides nothing from autograd."""
    known = x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return known and type(x) is Tensor and x.is_contiguous() and not x.requires_grad


class _Scratch:
    """float32 numbers that are kept: torch's own norm of bf16 numbers in float32 copies them, and on a CPU new memory
    for each copy takes several times as long as the norm."""

    def __init__(self) -> None:
        self._numbers: Tensor | None = None

    def wide(self, x: Tensor) -> Tensor:
        """Plain `x` in float32, good until the next call."""
        if x.dtype == torch.float32:
            return x
        if self._numbers is None or x.numel() > self._numbers.numel():
            with torch.inference_mode(False):
                self._numbers = torch.empty(x.numel(), dtype=torch.float32, device="cpu")
        return self._numbers[: x.numel()].view(x.shape).copy_(x)


_SCRATCH = _Scratch()


def clip_(gradients: list[Tensor], *, norm: Tensor, limit: float | None) -> None:
    """Scale gradients of this norm (a scalar on their device, which is not waited for) down to norm `limit`.

    The product is taken in float32; where the norm is below the limit, the factor is 1 and no bit changes.
    """
    if limit is None:
        return
    factor = (limit / norm.double()).clamp(max=1.0).float()
    direct = []
    for gradient in gradients:
        # On a CPU a bf16 product with a 0-d float32 is one in float32; a GPU would round the factor to bf16 first.
        if gradient.dtype == torch.float32 or gradient.device.type == "cpu":
            direct.append(gradient)
        else:
            gradient.copy_(gradient.float().mul_(factor))
    if direct:
        torch._foreach_mul_(direct, factor)


def settle_(gradients: list[Tensor], *, norm: Tensor, limit: float | None, dtype: str) -> None:
    """From sums to what the optimizer gets, in place: clipped (see `clip_`), and of `gradient_dtype: bf16 | fp32`.

    `bf16` rounds float32 sums to bf16 values, which stay float32 tensors.
    """
    clip_(gradients, norm=norm, limit=limit)
    if dtype == "bf16":
        for gradient in gradients:
            if gradient.dtype != torch.bfloat16:
                gradient.copy_(gradient.to(torch.bfloat16))
