"""Blocks of NVFP4 that hold nothing: each of their weights is stored as zero.

The scale of a block is at least 2**-6 of the tensor scale, which follows the tensor's largest weight. A block whose
largest weight is below amax / 688128 (a quarter of the least block scale) is therefore stored as zeros, and its weights
are lost; a multiplicative step never brings them back. Counted are all blocks that are meant to hold something: those
with a weight other than zero before it is rounded, and those with a gradient other than zero, however long ago they
died. A block that is zero by construction (a padding row, a mask) has neither.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpadam.numerics import Encoded
from mpadam.numerics.nvfp4 import NvFp4
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.probes.preview import Preview, preview


def count_flushed(update: Preview) -> Tensor:
    """int64 (2,): blocks meant to hold weights (see the module), and those of them that the update stores as zeros.
    Zeros in other formats."""
    fmt, plan = update.store.format, update.store
    if not isinstance(fmt, NvFp4):
        return torch.zeros(2, dtype=torch.int64, device=update.before.device)
    delta = update.step.delta
    if plan.has_carry:
        delta = delta + update.stored_before["carry"].to(torch.float32)
    tensors = {name.removeprefix("weight."): x for name, x in update.stored.items() if name.startswith("weight.")}
    target = update.before + delta
    meant = torch.where(target != 0, target, update.grad)
    return fmt.count_flushed(meant, Encoded(tensors, update.before.shape))


def flushed_record(counts: Tensor) -> dict[str, int]:
    """What `count_flushed` counted, as JSON."""
    return dict(zip(("blocks", "flushed"), counts.tolist(), strict=True))


def holds_nvfp4(optimizer: LowPrecisionOptimizer) -> bool:
    return any(group["weight_format"].startswith("nvfp4") for group in optimizer.param_groups if group["weight_format"])


def flushed_by_next_step(optimizer: LowPrecisionOptimizer) -> dict[str, int]:
    """`flushed_record` of the step that `optimizer` is about to make; nothing is changed."""
    updates = [
        count_flushed(preview(optimizer, p, group))
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None and isinstance(optimizer.store_of(p).plan.format, NvFp4)
    ]
    return flushed_record(torch.stack(updates).sum(0) if updates else torch.zeros(2, dtype=torch.int64))
