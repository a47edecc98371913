"""What an optimizer warns of: settings that are valid, but probably not what was meant. Each kind once per optimizer.

All of them are `OptimizerWarning`, so that `warnings.filterwarnings` can silence them or turn them into errors.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

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
