"""What a parameter, its gradient and values for it must be, each refusal a ValueError with the remedy; and what an
optimizer warns of: settings that are valid, but probably not what was meant, each kind once per optimizer.

All warnings are `OptimizerWarning`, so that `warnings.filterwarnings` can silence them or turn them into errors.
"""

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mpadam.optim.rules import RULES
from mpadam.optim.sharding import is_split, local, splits
from mpadam.optim.update import Plan

# --- warnings ---------------------------------------------------------------------------------------------------------


SWAPPED_FROM = 25.0
"""Rates look swapped where lr is more than this times lr_mult, which is 50 where the paper's rates are swapped. In the
studies of this repository it is at most 16, and 24 in a further trial next to the corner of a search."""


class OptimizerWarning(UserWarning):
    """A warning of this package's optimizers."""


def caution(text: str) -> None:
    """Warn, at the line outside this package and torch that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("mpadam", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, OptimizerWarning, stacklevel=level + 1)


def caution_rates(group: Mapping[str, Any], said: set[str]) -> None:
    """Warn of the two rates of a group that has been checked. said: the kinds that this optimizer has warned of."""
    start, start_mult = group["_base_lr"], group.get("_base_lr_mult")
    if not start_mult:  # a rule with one rate, a branch that is switched off, or a checkpoint of an earlier version
        return
    if start > SWAPPED_FROM * start_mult and "swapped" not in said:
        said.add("swapped")
        caution(
            f"lr = {start:g} is {start / start_mult:.3g} times lr_mult = {start_mult:g}; the rates may be swapped: the "
            "additive rate lr is usually the smaller one, as in lr=8e-5, lr_mult=4e-3"
        )
    lr, lr_mult = float(group["lr"]), float(group["lr_mult"])
    if group["tie_lr_mult"] is None and lr_mult == start_mult and lr != start and "tie" not in said:
        said.add("tie")
        caution(
            f"lr has moved from {start:g} to {lr:g}, and lr_mult = {lr_mult:g} has not: schedulers move only lr; pass "
            "tie_lr_mult=True so that lr_mult follows it, or tie_lr_mult=False if lr_mult is meant to stay"
        )


# --- refusals ---------------------------------------------------------------------------------------------------------


def is_trained(p: Tensor) -> bool:
    """Whether the optimizer takes `p` now; ValueError if it never could."""
    if not p.is_floating_point():
        raise ValueError(f"a parameter is {p.dtype}: only floating-point parameters can be trained; leave it out")
    return p.requires_grad


def check_values(values: Mapping[Tensor, Tensor], known: Mapping[Tensor, Any]) -> None:
    for p in values:
        if p not in known:
            what = f"a tensor of shape {tuple(p.shape)}" if isinstance(p, Tensor) else repr(p)
            raise ValueError(
                f"reload_weights got {what} as a key, which is no parameter that this optimizer trains: give a mapping "
                "from its own parameters to values"
            )
        value = values[p]
        if not isinstance(value, Tensor) or local(value).shape != local(p).shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(f"reload_weights got {got!r} for a parameter of shape {tuple(p.shape)}: give that shape")


def check_gradients(members: Iterable[Tensor], *, warn: bool) -> bool:
    """Whether there is a gradient; with `warn`, a warning if not. ValueError for one that is sparse or on meta."""
    graded = [p for p in members if p.grad is not None]
    for p in graded:
        assert p.grad is not None
        if p.grad.layout != torch.strided:
            raise ValueError(
                "a gradient is sparse: build the layer with sparse=False (nn.Embedding(..., sparse=False))"
            )
        if p.is_meta:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} is on the meta device and has no values: give the model its "
                "values (model.to_empty, then a checkpoint or an initialisation), then build the optimizer"
            )
    if warn and not graded:
        caution(
            "no parameter of the optimizer has a gradient, so the step changes nothing: call backward() first; if the "
            "model has got other parameters since the optimizer was built (load_state_dict(assign=True), fully_shard, "
            "to_empty), build the optimizer on the model as it is"
        )
    return bool(graded)


def check_sharding(p: Tensor, plan: Plan) -> None:
    """What needs more than this rank's rows cannot be done on a shard."""
    fmt = plan.store.format
    whole = fmt.whole or RULES[plan.rule].looks_at_whole(plan.constants)
    # Blocks run along the last dimension; tiles of several rows along the last two.
    blocks_cut = fmt.dtype is None and splits(p, last=2 if fmt.block[0] > 1 else 1)
    if is_split(p) and (whole or blocks_cut):
        raise ValueError(
            "a sharded parameter with nvfp4, apollo_e, normalized_rho_tensor, block_scale_exponent, or blocks or tiles "
            "cut by the sharding: these need the whole parameter; replicate it (DDP), or shard along the first "
            "dimension with an fp8 format whose blocks are rows (block_rows = 1)"
        )
