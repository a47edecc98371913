"""What writing a part of an update would store, on the scales that the whole update gives.

    write = writer(preview)
    write(preview.step.additive) != write(0)        where the additive part alone changes the stored weight

A block format chooses its scales anew with every write, and NVFP4 a scale of the whole tensor. A weight that moves only
because its scale did has not been updated, and a part that is written by itself would have other scales than the
update has. So every part, and the write of nothing that it is compared with, is rounded on the scales of the whole
update, with the same random bits and the same carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from mpadam.numerics import Encoded, round_bf16
from mpadam.numerics import Rounding as Mode
from mpadam.numerics.base import Format
from mpadam.numerics.fp8 import Fp8Blocks
from mpadam.numerics.grids import E2M1, Grid, get_grid, round_to_grid
from mpadam.numerics.nvfp4 import NvFp4
from mpadam.optim.store import in_shadow, refreshed_target
from mpadam.probes.preview import Preview

Rounding = Callable[[Tensor], Tensor]
_PREFIX = "weight."  # of the encoded tensors among those of a store
_ONE = {"e4m3": 0x38, "e5m2": 0x3C, "e2m1": 0x22}  # byte of the code of 1.0 (of two of them)


def writer(update: Preview) -> Callable[[Tensor], Tensor]:
    """part of the step (any shape that broadcasts) -> the stored weight that it would leave, float32."""
    plan, w = update.store, update.before
    rounded = _rounding(plan.format, update.stored, w.shape, update.bits)
    carry = update.stored_before["carry"].to(torch.float32) if plan.has_carry else None

    def write(part: Tensor) -> Tensor:
        if carry is not None:
            return rounded(w + (part + carry))
        if plan.shadow == "persistent":  # the weight that the rule sees is the shadow
            return in_shadow(plan, w + part, update.bits)
        if plan.shadow == "refreshed":
            return rounded(refreshed_target(plan, w, part, update.bits))
        return rounded(w + part)

    return write


def write_of_nothing(update: Preview, write: Callable[[Tensor], Tensor]) -> Tensor:
    """The stored weight that a step of zero would leave; itself, without work, where nothing can have moved it."""
    plan = update.store
    if plan.shadow == "persistent" or (plan.format.dtype is not None and not plan.has_carry):
        return update.before
    return write(update.before.new_zeros(()))


def _rounding(fmt: Format, stored: Mapping[str, Tensor], shape: torch.Size, bits: Tensor | None) -> Rounding:
    if fmt.dtype is torch.float32:
        return lambda x: x
    if fmt.dtype is torch.bfloat16:
        rounding: Mode = "nearest" if bits is None else "stochastic"
        return lambda x: round_bf16(x, rounding, bits).to(torch.float32)
    grid = _grid_of(fmt)
    return partial(_on_scale, grid=grid, scale=_scale_of_each(fmt, grid, stored, shape), bits=bits)


def _on_scale(x: Tensor, *, grid: Grid, scale: Tensor, bits: Tensor | None) -> Tensor:
    """Values of grid * scale that `x` rounds to, saturating."""
    scaled = x / scale
    nearest = round_to_grid(scaled, grid)
    if bits is None:
        return nearest * scale
    # A value of the format stays, although the quotient has a rounding error of its own.
    drawn = round_to_grid(scaled, grid, "stochastic", bits)
    return torch.where(nearest * scale == x, nearest, drawn) * scale


def _grid_of(fmt: Format) -> Grid:
    if isinstance(fmt, Fp8Blocks):
        return get_grid(fmt.fmt)
    if isinstance(fmt, NvFp4):
        return E2M1
    raise ValueError(
        f"weight_format = {fmt.name!r}: probes know fp32, bf16, fp8 blocks and nvfp4; set probe_every: null"
    )


def _scale_of_each(fmt: Format, grid: Grid, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """The scale of every weight: what the code of 1.0 decodes to there, float32 of `shape`."""
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in stored.items() if name.startswith(_PREFIX)}
    ones = torch.full_like(tensors["codes"], _ONE[grid.name])
    return fmt.decode(Encoded(tensors | {"codes": ones}, shape), torch.float32)
