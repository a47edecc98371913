"""What surrounds a step and must not change it.

A step is float32 arithmetic with one rounding at its end. Around it a training loop may have switched on autocast, TF32
or bf16 products for float32 matrices, or inference mode; all of them end where an update begins. Dtype and device of
what an update makes for itself are given where it is made, so defaults do not matter.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_BACKENDS: Any = torch.backends  # torch's own annotations lack the precision of products


@contextmanager
def float32_arithmetic(device_types: Iterable[str]) -> Iterator[None]:
    """Inside: no gradients are recorded, nothing is an inference tensor, and float32 products are float32."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())  # after inference_mode, which sets this too
        for kind in device_types:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        for products in (_BACKENDS.cuda.matmul, _BACKENDS.mkldnn.matmul):
            stack.enter_context(_full_precision(products))
        yield


@contextmanager
def _full_precision(products: Any) -> Iterator[None]:
    """Products of float32 in float32, whatever `torch.set_float32_matmul_precision` was told."""
    before = products.fp32_precision
    if before in ("ieee", "none"):
        yield
        return
    inherited = before == _BACKENDS.fp32_precision
    products.fp32_precision = "ieee"
    try:
        yield
    finally:
        products.fp32_precision = "none" if inherited else before
