"""Staleness: second moments that rounding holds where they are.

v = b2 v + (1 - b2) g^2 moves by (1 - b2)(g^2 - v). Where that is below half a unit in the last place of the state's
dtype (in bf16 2**-10 to 2**-8 of v), the stored value stays, at every step again: at b2 = 0.999 it cannot even decay,
since 0.001 v is too small a step for most v. Due: the float32 update differs from the stored value. Stale: it is due,
and the stored value stays the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpadam.probes.preview import Preview

SECOND_MOMENTS = ("v", "v_e", "v_r")


def count_staleness(update: Preview) -> dict[str, Tensor]:
    """state -> int64 (3,): entries, of these due, of these stale."""
    return {name: _count(update, name) for name in SECOND_MOMENTS if name in update.moments}


def _count(update: Preview, name: str) -> Tensor:
    stored, new = update.moments_before[name], update.moments[name]
    due = new != stored.to(torch.float32)
    stale = due & (new.to(stored.dtype) == stored)
    return torch.stack([due.new_tensor(due.numel(), dtype=torch.int64), due.sum(), stale.sum()])
