"""Which parameter of a checkpoint is which of the optimizer.

Names decide where both sides have them (optimizers built from `named_parameters()` or `parameter_groups`): a parameter
takes what was saved under its name, in whatever order that was. Otherwise order and count decide, as in torch. What
torch's wrappers put into names (`module.`, `_orig_mod.`) is no part of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

Group = Mapping[str, Any]
Names = list[list[str]]
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def in_order_of(groups: Sequence[Group], saved: Sequence[Group]) -> list[dict[str, Any]]:
    """The saved groups, and the parameters in them, in the order of `groups`, under the names that `groups` have.

    Raises ValueError, with the names, where those of the checkpoint are not the optimizer's, and for a list of names
    that does not fit its group.
    """
    check_names(groups, "optimizer")
    check_names(saved, "checkpoint")
    ours, theirs = _names(groups), _names(saved)
    if ours is not None and theirs is not None:
        ours, theirs = _comparable(ours, theirs)
        if not (_by_place(saved) and set(chain(*ours)).isdisjoint(chain(*theirs))):
            saved = _matched(saved, theirs, ours)
    ordered = [{key: value for key, value in group.items() if key != "param_names"} for group in saved]
    for group, own in zip(ordered, groups, strict=False):
        if "param_names" in own:
            group["param_names"] = own["param_names"]
    return ordered


def check_names(groups: Sequence[Group], owner: str) -> None:
    """ValueError if a group has names, but not one for each parameter: whose state would be whose?"""
    for n, group in enumerate(groups):
        names, count = group.get("param_names"), len(group["params"])
        if names is not None and len(names) != count:
            raise ValueError(
                f"param_names in group {n} of the {owner} holds {len(names)} names for {count} parameters: change it "
                "together with params, or delete it"
            )


def _by_place(saved: Sequence[Group]) -> bool:
    """Whether the groups come from torch.distributed.checkpoint's helpers: these name a parameter by its place in the
    model, which an optimizer built on a part of it need not do, and have put all into the optimizer's order."""
    return any(isinstance(item, str) for group in saved for item in group["params"])


def _names(groups: Sequence[Group]) -> Names | None:
    """The names of each group, or None where one with parameters has none."""
    found = [group["params"] if _by_place([group]) else group.get("param_names", []) for group in groups]
    complete = all(names or not group["params"] for names, group in zip(found, groups, strict=True))
    return [list(names) for names in found] if complete else None


def _comparable(ours: Names, theirs: Names) -> tuple[Names, Names]:
    """Both without the words of wrappers, if they differ as they are and stay distinct."""
    bare = _bare_names(ours), _bare_names(theirs)
    if set(chain(*ours)) == set(chain(*theirs)) or _clash(bare[0], ours) or _clash(bare[1], theirs):
        return ours, theirs
    return bare


def _bare_names(names: Names) -> Names:
    return [[".".join(w for w in name.split(".") if w not in _WRAPPERS) for name in group] for group in names]


def _clash(bare: Names, names: Names) -> bool:
    return len(set(chain(*bare))) < len(set(chain(*names)))


def _matched(saved: Sequence[Group], theirs: Names, ours: Names) -> list[dict[str, Any]]:
    """A saved group for each of ours, the one with the same names; equal names keep the order they were saved in."""
    lacks, more = (Counter(chain(*a)) - Counter(chain(*b)) for a, b in ((ours, theirs), (theirs, ours)))
    if lacks or more:
        parts = (("lacks", lacks), ("has the unknown", more))
        found = " and ".join(f"{what} {_listed(names)}" for what, names in parts if names)
        raise ValueError(
            f"the checkpoint {found}: its parameters are not the optimizer's; build model and optimizer as those that "
            "were saved"
        )
    left, matched = list(range(len(saved))), []
    for names in ours:
        index = next((i for i in left if Counter(theirs[i]) == Counter(names)), None)
        if index is None:
            raise ValueError(
                f"parameter {names[0]!r} shares its group with others in the checkpoint than in the optimizer: build "
                "the parameter groups as those that were saved"
            )
        left.remove(index)
        places: dict[str, list[Any]] = {}
        for name, item in zip(theirs[index], saved[index]["params"], strict=True):
            places.setdefault(name, []).append(item)
        matched.append({**saved[index], "params": [places[name].pop(0) for name in names]})
    return matched


def _listed(names: Mapping[str, int], most: int = 5) -> str:
    shown = ", ".join(map(repr, list(names)[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
