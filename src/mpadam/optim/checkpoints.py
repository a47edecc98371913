"""What a checkpoint of an optimizer must fit, and how its tensors get past torch's cast to the parameter's dtype."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from mpadam.optim.matching import in_order_of
from mpadam.optim.options import IDENTITY
from mpadam.optim.sharding import part_of


@dataclass(frozen=True)
class _Box:
    """Hides a tensor from torch's `load_state_dict`, which would cast it to the parameter's dtype."""

    tensor: Tensor


def box(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Load hook: match parameters, refuse a checkpoint that does not fit, and hide its tensors from torch's cast."""
    _check_parts(state_dict)
    groups = in_order_of(optimizer.param_groups, state_dict["param_groups"])
    _check_options(optimizer, groups)
    state, boxed = state_dict["state"], dict(state_dict["state"])
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    names = chain.from_iterable(group.get("param_names", group["params"]) for group in groups)
    saved_ids = chain.from_iterable(group["params"] for group in groups)
    for p, saved_id, name in zip(params, saved_ids, names, strict=False):
        saved = {k: part_of(p, v) if isinstance(v, Tensor) else v for k, v in state.get(saved_id, {}).items()}
        _check_state(name, saved, optimizer.state.get(p, {}))
        if saved:
            boxed[saved_id] = {k: _Box(v) if isinstance(v, Tensor) else v for k, v in saved.items()}
    return state_dict | {"state": boxed, "param_groups": groups}


def unbox(value: Any, device: torch.device) -> Any:
    """A copy on `device` of what `box` hid; any other value as it is."""
    return value.tensor.detach().to(device, copy=True) if isinstance(value, _Box) else value


def layout(state: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> shape and dtype of what is kept for a parameter, "number" for what is no tensor."""
    return {k: (tuple(v.shape), str(v.dtype)) if isinstance(v, Tensor) else "number" for k, v in sorted(state.items())}


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any], *, here: str) -> str | None:
    """How two layouts differ, in words that go on after "the checkpoint keeps"; None if they do not."""
    for key in theirs:
        if key in ours and theirs[key] != ours[key]:
            return f"{key} of {_text(theirs[key])}, {here} {_text(ours[key])}"
    if theirs.keys() != ours.keys():
        return f"{', '.join(theirs) or 'nothing'}, {here} {', '.join(ours) or 'nothing'}"
    return None


def _text(entry: Any) -> str:
    return entry if isinstance(entry, str) else f"shape {entry[0]} and dtype {entry[1].removeprefix('torch.')}"


def check_is_checkpoint(state_dict: object) -> None:
    """ValueError for what no optimizer's `state_dict()` is."""
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            f"load_state_dict got a {type(state_dict).__name__}, not a dict: give what optimizer.state_dict() returned"
        )


def _check_parts(state_dict: Mapping[str, Any]) -> None:
    lacks = [f"{key!r}" for key in ("state", "param_groups") if key not in state_dict]
    lacks += [f"'params' in group {n}" for n, g in enumerate(state_dict.get("param_groups", ())) if "params" not in g]
    if lacks:
        raise ValueError(f"the checkpoint lacks {', '.join(lacks)}: give what optimizer.state_dict() returned")


def _check_options(optimizer: torch.optim.Optimizer, saved_groups: list[dict[str, Any]]) -> None:
    for saved, group in zip(saved_groups, optimizer.param_groups, strict=False):
        for key in IDENTITY:
            if saved.get(key) != group.get(key):
                raise ValueError(
                    f"the checkpoint has {key} = {saved.get(key)!r} and the optimizer {group.get(key)!r}: "
                    "build the optimizer as the one that was saved"
                )
        own = (
            optimizer.defaults.keys() | {"_base_lr"} | ({"role"} if group.get("second_moment") == "apollo_e" else set())
        )
        lacks = sorted(group.keys() & own - saved.keys() - {"differentiable"})  # torch's, which it adds when it loads
        if lacks:
            raise ValueError(
                f"a parameter group of the checkpoint lacks {', '.join(lacks)}, and no default can replace what was "
                "trained with: add it to the group in the checkpoint, with the value that it had"
            )


def _check_state(name: object, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    different = difference(layout(saved), layout(own), here="the optimizer")
    if different:
        frozen = "" if saved and own else " (nothing where a parameter is frozen: freeze the same ones first)"
        raise ValueError(
            f"for parameter {name} the checkpoint keeps {different}{frozen}: build model and optimizer as those that "
            "were saved"
        )
