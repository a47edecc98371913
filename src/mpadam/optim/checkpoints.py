"""What a checkpoint of an optimizer must fit, and how its tensors get past torch's cast to the parameter's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from mpadam.optim.options import IDENTITY


@dataclass(frozen=True)
class _Box:
    """Hides a tensor from torch's `load_state_dict`, which would cast it to the parameter's dtype."""

    tensor: Tensor


def box(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Load hook: refuse a checkpoint that does not fit, and hide its tensors from torch's cast."""
    _check_fits(optimizer, state_dict)
    boxed = {
        key: {name: _Box(value) if isinstance(value, Tensor) else value for name, value in state.items()}
        for key, state in state_dict["state"].items()
    }
    return state_dict | {"state": boxed}


def unbox(value: Any, device: torch.device) -> Any:
    """A copy on `device` of what `box` hid; any other value as it is."""
    return value.tensor.detach().to(device, copy=True) if isinstance(value, _Box) else value


def _check_fits(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    saved_groups = state_dict["param_groups"]
    for saved, group in zip(saved_groups, optimizer.param_groups, strict=False):
        for key in IDENTITY:
            if saved.get(key) != group.get(key):
                raise ValueError(
                    f"the checkpoint has {key} = {saved.get(key)!r} and the optimizer {group.get(key)!r}: "
                    "build the optimizer as the one that was saved"
                )
    saved_ids = chain.from_iterable(group["params"] for group in saved_groups)
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for saved_id, p in zip(saved_ids, params, strict=False):
        ours, theirs = _layout(optimizer.state.get(p, {})), _layout(state_dict["state"].get(saved_id, {}))
        if ours != theirs:
            frozen = "" if ours and theirs else " (nothing where a parameter is frozen: freeze the same ones first)"
            raise ValueError(
                f"the checkpoint keeps {theirs} for parameter {saved_id}, the optimizer {ours}{frozen}: build model "
                "and optimizer as those that were saved"
            )


def _layout(state: Mapping[str, Any]) -> dict[str, Any]:
    return {k: (tuple(v.shape), str(v.dtype)) if isinstance(v, Tensor) else "number" for k, v in sorted(state.items())}
