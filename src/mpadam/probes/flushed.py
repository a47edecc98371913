"""Blocks of NVFP4 that hold nothing: each of their weights is stored as zero.

The scale of a block is at least 2**-6 of the tensor scale, which follows the tensor's largest weight. A block whose
largest weight is below amax / 688128 (a quarter of the least block scale) is therefore stored as zeros, and its weights
are lost; a multiplicative step never brings them back. Counted are all blocks that are meant to hold something: those
with a weight other than zero before it is rounded, and those with a gradient or a moment other than zero, however long
ago they died: the row of a token that is not in this batch, too. A block that is zero by construction (a
padding row, a mask) has neither.
"""

import torch
from torch import Tensor

from mpadam.numerics.base import Flushing
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.store import encoded
from mpadam.optim.update import Preview


def count_flushed(preview: Preview) -> Tensor:
    """int64 (2,): blocks meant to hold weights (see the module), and those of them that the update stores as zeros.
    Zeros in formats that flush none."""
    fmt, x, update = preview.plan.store.format, preview.operands, preview.update
    if not isinstance(fmt, Flushing):
        return torch.zeros(2, dtype=torch.int64, device=update.before.device)
    target = preview.plan.store.target(x.stored, update.before, update.step.delta, x.bits())
    meant = target != 0
    for trace in (x.grad, *(moment for moment in x.moments.values() if moment.shape == target.shape)):
        meant = meant | (trace != 0)
    return fmt.count_flushed(meant, encoded(update.stored, update.before.shape))


def flushed_record(counts: Tensor) -> dict[str, int]:
    return dict(zip(("blocks", "flushed"), counts.tolist(), strict=True))


def flushing(optimizer: LowPrecisionOptimizer) -> list[Tensor]:
    """The parameters with a gradient whose format may store whole blocks as zeros."""
    members = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return [p for p in members if isinstance(optimizer.store_of(p).plan.format, Flushing)]


def flushed_by_next_step(optimizer: LowPrecisionOptimizer) -> dict[str, int]:
    """`flushed_record` of the step that `optimizer` is about to make; nothing is changed."""
    updates = [count_flushed(optimizer.preview(p)) for p in flushing(optimizer)]
    return flushed_record(torch.stack(updates).sum(0) if updates else torch.zeros(2, dtype=torch.int64))
