"""The same step in other formats and write-backs: what a store of that kind would keep of it.

Every trial starts from the weight as that format holds it, to nearest, without a history, and takes one step. Parts of
a step are rounded on the scales of the whole, as in `mpadam.optim.store.StorePlan.part_writer`.
"""

import torch
from torch import Tensor, nn

from mpadam.numerics import get_format
from mpadam.optim.optimizer import MPlusAdam
from mpadam.optim.store import StorePlan

FORMATS = ("bf16", "fp8_e5m2", "fp8_e4m3", "nvfp4")
REMEDIES = ("stochastic", "kahan")


def keep(w: Tensor, step: Tensor, fmt: str, write_back: str, *, bits: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """What a step changes in the stored weight, with the carry if there is one, and the spacing of the format there.

    w, step: float32 [rows, width], rows of samples of one or several tensors.  bits: int32 of that shape.
    largest: float32 [rows, 1], the largest magnitude in the tensor that a row was taken from.
    """
    plan = StorePlan(get_format(fmt), write_back=write_back)
    if not plan.format.whole:
        return _kept(plan, w, step, bits)
    # A scale of the whole tensor: rows are measured by it, and a row that holds it is put in front of them.
    unit = torch.where(largest > 0, largest, 1.0)
    first = torch.zeros_like(w[:1])
    first[0, 0] = 1.0
    w, step = torch.cat([first, w / unit]), torch.cat([torch.zeros_like(first), step / unit])
    moved, gap = _kept(plan, w, step, torch.cat([torch.zeros_like(bits[:1]), bits]))
    return moved[1:] * unit, gap[1:] * unit


def _kept(plan: StorePlan, w: Tensor, step: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    drawn = bits if plan.needs_bits else None
    before = plan.initial(w)
    base = plan.read(before, w.shape)
    after = plan.write(before, base, step, drawn).tensors
    if plan.has_carry:
        held = [plan.read(tensors, w.shape) + tensors["carry"].to(torch.float32) for tensors in (before, after)]
        moved = held[1] - held[0]
    else:
        write = plan.part_writer(before, after, base, drawn)
        moved = write(step) - write(torch.zeros_like(step))
    return torch.where(step == 0, 0.0, moved), plan.spacing(after, base)


def first_m_plus_adam_step(w: Tensor, grad: Tensor) -> Tensor:
    """The first step, float32 [*shape], of M+Adam at its default rates from these weights and this gradient."""
    p = nn.Parameter(w.clone())
    p.grad = grad
    step = MPlusAdam([p], weight_format="fp32", state_dtype="fp32").preview(p).update.step.delta
    return torch.where(w + step == w, 0.0, step)
