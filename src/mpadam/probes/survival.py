"""Update survival: which intended updates change the stored weight, by |w|; and staleness: second moments that rounding
holds where they are.

Counted for the additive part alone, the multiplicative part alone, and both together (without the decay, which is not
meant to move a weight by itself: it is below half a unit in the last place of bf16 at any usual rate). Intended: the
part is not zero. Survived: what would be stored differs from the write of nothing (see `StorePlan.part_writer`).

Bins are powers of two of the stored weight before the update: bin e is 2**e <= |w| < 2**(e + 1), the lowest takes
everything below and the highest everything above it; zero is a bin of its own.

Staleness: v = b2 v + (1 - b2) g^2 moves by (1 - b2)(g^2 - v). Where that is below half a unit in the last place of the
state's dtype (in bf16 2**-10 to 2**-8 of v), the stored value stays, at every step again: at b2 = 0.999 it cannot even
decay, since 0.001 v is too small a step for most v. Due: the float32 update differs from the stored value. Stale: it is
due, and the stored value stays the same.
"""

from typing import Any

import torch
from torch import Tensor

from mpadam.optim.card import Step
from mpadam.optim.rules import RULES
from mpadam.optim.update import Preview

LOWEST, HIGHEST = -24, 3
BINS = ("zero", *range(LOWEST, HIGHEST + 1))


def parts_of(rule: str) -> tuple[str, ...]:
    """The branches of a rule, and "both" where it has two."""
    branches = RULES[rule].branches
    return branches if len(branches) == 1 else (*branches, "both")


def count_survival(preview: Preview) -> Tensor:
    """How many weights of each bin each branch lets stand: int64 (bins, 3, ..., 3), an axis of 3 per branch of the
    rule: see `fate`."""
    branches, update, x = parts_of(preview.plan.rule), preview.update, preview.operands
    write = preview.plan.store.part_writer(x.stored, update.stored, update.before, x.bits())
    nothing = write(update.before.new_zeros(()))
    index = bin_of(update.before)
    for branch in branches:
        part = part_of(update.step, branch)
        index = 3 * index + fate(part, write(part), nothing)
    counts = torch.bincount(index.flatten(), minlength=len(BINS) * 3 ** len(branches))
    return counts.view(len(BINS), *[3] * len(branches))


def fate(part: Tensor, kept: Tensor, nothing: Tensor) -> Tensor:
    """0 the part is zero, 1 it is lost, 2 it survives; int64, of the shape of `part`.

    kept, nothing: the stored weights that the part and a part of zero leave.
    """
    return (part != 0).to(torch.int64) * (1 + (kept != nothing).to(torch.int64))


def bin_of(w: Tensor) -> Tensor:
    """Index in BINS of each weight, int64: the exponent is read off the bits of float32."""
    exponent = ((w.view(torch.int32) >> 23) & 0xFF) - 127
    index = exponent.clamp(LOWEST, HIGHEST) - LOWEST + 1
    return torch.where(w == 0, 0, index).to(torch.int64)


def part_of(step: Step, branch: str) -> Tensor:
    if branch == "both":
        return step.additive + step.multiplicative
    part: Tensor = getattr(step, branch)
    return part


def survival_record(counts: Tensor, rule: str) -> dict[str, Any]:
    """Counts of `count_survival` as JSON: bins that hold weights, how many, and per branch what is intended and what
    survives."""
    weights = counts.flatten(1).sum(1)
    held = weights.nonzero().flatten()
    record: dict[str, Any] = {"bins": [BINS[i] for i in held.tolist()], "weights": weights[held].tolist()}
    for axis, branch in enumerate(parts_of(rule), start=1):
        others = [dim for dim in range(1, counts.dim()) if dim != axis]
        of_branch = counts.sum(others)[held] if others else counts[held]
        survived = of_branch[:, 2]
        record[branch] = {"intended": (of_branch[:, 1] + survived).tolist(), "survived": survived.tolist()}
    return record


def count_staleness(preview: Preview) -> dict[str, Tensor]:
    """second moment -> `held_still`."""
    stored, new = preview.operands.moments, preview.update.moments
    return {name: held_still(stored[name], new[name]) for name in new if name.startswith("v")}


def held_still(stored: Tensor, new: Tensor) -> Tensor:
    """int64 (3,): entries of a state in the dtype of `stored`, those that the float32 update `new` would move (due),
    and those of them that stay the same (stale)."""
    due = new != stored.to(torch.float32)
    stale = due & (new.to(stored.dtype) == stored)
    return torch.stack([due.new_tensor(due.numel(), dtype=torch.int64), due.sum(), stale.sum()])
