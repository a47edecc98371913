"""The next update of a whole model, measured: survival, descent and staleness by role, flushed NVFP4 blocks."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.probes.descent import descent_record, descent_sums
from mpadam.probes.flushed import count_flushed, flushed_record, flushing
from mpadam.probes.survival import count_staleness, count_survival, survival_record

ALL = "all"
PROJECTIONS = ("attention", "mlp", "projection")  # roles
_KINDS = {"self_attn": "attention", "mlp": "mlp"}  # word in the name of a projection -> its role here


def role_of(name: str, group: Mapping[str, Any]) -> str:
    """embedding, head, norm, other; of projections whether they are attention's or the MLP's."""
    role = group.get("role", "projection")
    if role != "projection":
        return str(role)
    return next((kind for word, kind in _KINDS.items() if word in name.split(".")), "projection")


@torch.no_grad()
def survey(model: nn.Module, optimizer: LowPrecisionOptimizer) -> dict[str, Any]:
    """What the step that `optimizer` is about to make would do; JSON, nothing is changed.

    survival: role -> `survival_record`.  descent: role, and "all" -> `descent_record`.
    staleness: state -> {"entries", "due", "stale"}.
    nvfp4: {"blocks", "flushed"}, where masters are NVFP4: blocks meant to hold weights, and those stored as zeros.
    Raises ValueError for sharded parameters.
    """
    survival: dict[str, Tensor] = {}
    descent: dict[str, dict[str, Tensor]] = {}
    staleness: dict[str, Tensor] = {}
    flushed: dict[str, Tensor] = {}
    may_flush = bool(flushing(optimizer))
    for _, role, p in members(model, optimizer):
        update = optimizer.preview(p)  # of one parameter at a time: it needs much memory
        _add(survival, {role: count_survival(update)})
        sums = descent_sums(update)
        for place in (ALL, role):
            _add(descent.setdefault(place, {}), sums)
        _add(staleness, count_staleness(update))
        _add(flushed, {"nvfp4": count_flushed(update)} if may_flush else {})
    return {
        "survival": {role: survival_record(counts, optimizer.rule) for role, counts in survival.items()},
        "descent": {place: descent_record(sums) for place, sums in descent.items()},
        "staleness": {
            state: dict(zip(("entries", "due", "stale"), counts.tolist(), strict=True))
            for state, counts in staleness.items()
        },
        **{key: flushed_record(counts) for key, counts in flushed.items()},
    }


def members(model: nn.Module, optimizer: LowPrecisionOptimizer) -> Iterator[tuple[str, str, Tensor]]:
    """Name, role (`role_of`) and parameter of each that has a gradient."""
    names = {p: name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        yield from ((names[p], role_of(names[p], group), p) for p in group["params"] if p.grad is not None)


def _add(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for key, value in more.items():
        totals[key] = totals[key] + value if key in totals else value
