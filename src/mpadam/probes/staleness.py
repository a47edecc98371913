"""Staleness: second moments that rounding holds where they are.

v = b2 v + (1 - b2) g^2 moves by (1 - b2)(g^2 - v). Where that is below half a unit in the last place of the state's
dtype (in bf16 2**-10 to 2**-8 of v), the stored value stays, at every step again: at b2 = 0.999 it cannot even decay,
since 0.001 v is too small a step for most v. Due: the float32 update differs from the stored value. Stale: it is due,
and the stored value stays the same.
"""

import torch
from torch import Tensor

from mpadam.optim.update import Preview


def count_staleness(look: Preview) -> dict[str, Tensor]:
    """second moment -> `held_still`."""
    stored, new = look.operands.moments, look.update.moments
    return {name: held_still(stored[name], new[name]) for name in new if name.startswith("v")}


def held_still(stored: Tensor, new: Tensor) -> Tensor:
    """int64 (3,): entries of a state in the dtype of `stored`, those that the float32 update `new` would move (due),
    and those of them that stay the same (stale)."""
    due = new != stored.to(torch.float32)
    stale = due & (new.to(stored.dtype) == stored)
    return torch.stack([due.new_tensor(due.numel(), dtype=torch.int64), due.sum(), stale.sum()])
