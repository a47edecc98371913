"""The options of a parameter group: what may be in one, what it becomes, and the rates that follow from it.

Options that a step reads (rates, betas, clip, ...) may move between steps, and are checked at each; what the stored
state depends on is fixed when a parameter is taken. `_base_lr` and `_base_lr_mult`, the rates at construction, are the
only keys that are kept for the optimizer's own use; `rule` is its class's, and what a caller says of it must agree.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from mpadam.optim.card import Constants, Rates
from mpadam.optim.names import OptimizerName, all_hyperparameters, check_choices, hyperparameters_of
from mpadam.optim.rules import RULES

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: options of a group that a checkpoint must share with the optimizer it is loaded into
IDENTITY = (
    *("rule", "multiplicative_form", "second_moment", "write_back", "weight_format"),
    *("state_dtype", "carry_dtype", "shadow", "shadow_dtype"),
)
_FIXED = (*IDENTITY, "apollo_rank", "apollo_scope", "seed")
_WORDS_OF_SOME_RULE = {"betas", "multiplicative_form", "second_moment", "apollo_scope", "tie_lr_mult"}


def check_keys(group: Mapping[str, Any], defaults: Mapping[str, Any], *, title: str, index: int) -> None:
    """ValueError for an option of another rule; keys that no optimizer here knows (name, role, initial_lr) may stay.

    `weight_decay_mult = 0`, which `parameter_groups` says of norms whatever the optimizer is, holds for every rule.
    """
    place = f"parameter group {index}" + (f" ({group['role']!r})" if "role" in group else "")
    if group.get("rule", defaults["rule"]) != defaults["rule"]:
        raise ValueError(
            f"rule = {group['rule']!r} in {place}: the class says the rule, and {title}'s is {defaults['rule']!r}; "
            "leave the key out, or build the optimizer of that rule"
        )
    of_some_rule = all_hyperparameters().keys() | _WORDS_OF_SOME_RULE
    for key in group:
        nothing = key == "weight_decay_mult" and group[key] == 0
        if key in of_some_rule and key not in defaults and not nothing:
            taken = sorted(of_some_rule & defaults.keys())
            raise ValueError(
                f"{key} = {group[key]!r} in {place}: {title} does not take it; leave it out. It takes "
                + ", ".join(taken)
            )


def check_new(group: dict[str, Any]) -> None:
    """`check_moving` of a group that an optimizer is built on, and the rates that it starts from. `_base_lr` is the
    rate that a scheduler began with, where one has already moved `lr` (to zero, perhaps), else `lr`."""
    for key in ("_base_lr", "_base_lr_mult"):
        group.pop(key, None)  # of another optimizer, whose group this was
    started = _scale(group, "initial_lr")
    if started > 0.0:
        group["_base_lr"] = started
    check_moving(group)
    group.setdefault("_base_lr", float(group["lr"]))
    if "lr_mult" in group:
        group["_base_lr_mult"] = float(group["lr_mult"])


def check_moving(group: dict[str, Any]) -> None:
    """Check all numbers, words and switches of a group, and store each number as what it was checked as.

    A tensor as `lr` or `lr_mult` stays the caller's own, since schedulers write into it. A number that rounding has
    taken below zero, as schedulers do that end there, is zero.
    """
    check_choices(group)
    for key, third in (("compile", "auto"), ("tie_lr_mult", None)):
        value = group.get(key, third)
        if not isinstance(value, bool) and value != third:
            raise ValueError(f"{key} = {value!r}: give True, False or {third!r}")
    form, second_moment = group.get("multiplicative_form"), group.get("second_moment", "full")
    known = hyperparameters_of(OptimizerName(group["rule"], form, second_moment, group["write_back"]))
    if "betas" in group:
        pair = group["betas"]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"betas = {pair!r}: give a pair such as (0.87, 0.98)")
        named = zip(("beta1", "beta2"), pair, strict=True)
        group["betas"] = tuple(known[key].check(_number(key, value)) for key, value in named)
    for key, of_any_rule in all_hyperparameters().items():
        if key not in group:
            continue
        allowed = known.get(key, of_any_rule)
        value = allowed.check(_not_below_zero(group, key, allowed.default))
        if not (key in ("lr", "lr_mult") and isinstance(group[key], Tensor)):
            group[key] = value
    if group.get("tie_lr_mult") and not group.get("_base_lr", group["lr"]):
        raise ValueError("tie_lr_mult = True with lr = 0: lr_mult follows lr / initial lr; give lr above 0")


def resolve(group: dict[str, Any]) -> None:
    """Dtypes and formats as names, which any checkpoint can hold; None becomes what it stands for, where that is one
    for all parameters of the group."""
    for key in ("state_dtype", "carry_dtype", "shadow_dtype"):
        group[key] = _dtype_name(key, group[key])
    own = {p.dtype for p in group["params"]}
    if len(own) == 1:
        (dtype,) = own
        group["weight_format"] = group["weight_format"] or _known(dtype)
        group["state_dtype"] = group["state_dtype"] or _known(dtype)
    group["carry_dtype"] = group["carry_dtype"] or "bf16"
    group["shadow_dtype"] = group["shadow_dtype"] or group["state_dtype"]
    seed = group["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed!r}: give a whole number from 0, below 2**63")


def fixed(group: Mapping[str, Any]) -> dict[str, Any]:
    """What the state of a parameter depends on."""
    return {key: group.get(key) for key in _FIXED}


def check_fixed(group: Mapping[str, Any], taken: Mapping[str, Any]) -> None:
    """ValueError if an option moved that must not, once the optimizer holds a parameter."""
    for key, value in taken.items():
        if group.get(key) != value:
            raise ValueError(
                f"{key} = {group.get(key)!r}: it was {value!r} when the optimizer took the parameters, and what is "
                "stored depends on it; build another optimizer"
            )


def rates_at(group: Mapping[str, Any], t: int) -> Rates:
    """The rates of update `t` (from 1) from the options of a group, in double precision."""
    # Never below zero, where rounding may have taken a tensor: see check_moving.
    rates = {key: max(float(group.get(key, 0.0)), 0.0) for key in ("lr", "lr_mult")}
    if group.get("tie_lr_mult"):
        rates["lr_mult"] *= rates["lr"] / group["_base_lr"]
    decay = rates["lr"] * group.get("weight_decay", 0.0) + rates["lr_mult"] * group.get("weight_decay_mult", 0.0)
    beta1, beta2 = _beta(group, "beta1"), _beta(group, "beta2")
    moved = [h.name for h in RULES[group["rule"]].hyperparameters if h.schedule == "multiplicative"]
    multiplicative = rates[moved[0]] if moved else 0.0
    return Rates(rates["lr"] / (1.0 - beta1**t), multiplicative, decay, 1.0 - beta2**t)


def constants(group: Mapping[str, Any], *, compress: bool) -> Constants:
    """The constants of a group's rule for a parameter that Apollo-E does, or does not, compress."""
    given = {f.name: group[f.name] for f in fields(Constants) if f.name in group}
    betas = {key: _beta(group, key) for key in ("beta1", "beta2")}
    own = tuple((name, group[name]) for name in RULES[group["rule"]].numbers())
    return Constants(own=own, **given | betas | {"second_moment": "apollo_e" if compress else "full"})


def _beta(group: Mapping[str, Any], key: str) -> Any:
    """beta1 or beta2 of a group, where `betas` holds both; 0 for a rule without."""
    if "betas" in group:
        return group["betas"][0 if key == "beta1" else 1]
    return group.get(key, 0.0)


def _not_below_zero(group: Mapping[str, Any], key: str, usual: float | None) -> Any:
    """The number `key` of a group; 0.0 where it is negative only by rounding, given the value that it started from."""
    value = _number(key, group[key])
    if not isinstance(value, float) or not value < 0.0:
        return value
    dtype = group[key].dtype if isinstance(group[key], Tensor) else torch.float64
    start = max(_scale(group, k) for k in ("_base_lr", "initial_lr", "max_lr")) if key == "lr" else usual or 0.0
    if (key == "lr_mult" or (key == "lr" and dtype == torch.float64)) and "_base_lr" in group:
        start = max(start, 1.0)  # whatever it was set to since the optimizer was built
    return 0.0 if -value <= 64 * torch.finfo(dtype).eps * start else value


def _scale(group: Mapping[str, Any], key: str) -> float:
    """The size of a number that a scheduler keeps in a group; 0.0 if there is none."""
    value = _number(key, group.get(key, 0.0))
    return abs(float(value)) if isinstance(value, (int, float)) else 0.0


def _number(key: str, value: Any) -> Any:
    """A Python number where `value` is a tensor that holds one, or a number of NumPy."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"{key} = a tensor of shape {tuple(value.shape)}: give one number, or a tensor that holds one")
    return value.item() if isinstance(value, Tensor) else plain(value)


def plain(value: Any) -> Any:
    """A number of NumPy, which schedulers may leave in a group, as Python's, which any checkpoint can hold."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.item() if getattr(value, "shape", None) == () and not isinstance(value, Tensor) else value


def name_of(dtype: torch.dtype, *, key: str = "weight_format") -> str:
    """ "fp32" or "bf16"; ValueError, with the remedy for option `key`, for any other dtype of a parameter."""
    name = _known(dtype)
    if name is None:
        raise ValueError(f"a parameter is {dtype}: say {key}='fp32' or 'bf16', or convert the model to one of them")
    return name


def _known(dtype: torch.dtype) -> str | None:
    return next((name for name, known in DTYPES.items() if known == dtype), None)


def _dtype_name(key: str, dtype: Any) -> str | None:
    """ "fp32", "bf16" or None, from that or the torch dtype; ValueError for anything else."""
    for name, known in DTYPES.items():
        if dtype in (name, known):
            return name
    if dtype is None:
        return None
    raise ValueError(f"{key} = {dtype!r}: give 'fp32', 'bf16' or None")
