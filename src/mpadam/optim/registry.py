"""From a name and its numbers to an optimizer: what training calls.

build_optimizer(model, "m-plus-adam-sr", {"lr": 8e-5, "lr_mult": 4e-3}, masters="fp8", state_dtype="bf16")
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mpadam.numerics.base import Format
from mpadam.numerics.formats import card_of
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.groups import parameter_groups
from mpadam.optim.names import OptimizerName, check_hyperparameters, parse_optimizer_name
from mpadam.optim.optimizer import optimizer_class
from mpadam.optim.rules import RULES


def build_optimizer(
    model_or_groups: nn.Module | Sequence[dict[str, Any]],
    name: str | OptimizerName,
    hyperparameters: Mapping[str, Any],
    *,
    masters: str | Format,
    state_dtype: str | None = None,
    carry_dtype: str | None = None,
    shadow: str = "none",
    shadow_dtype: str | None = None,
    apollo_scope: str = "projections",
    seed: int = 0,
    compile: bool = False,
) -> LowPrecisionOptimizer:
    """The optimizer `name` of a study over the parameter groups of a model.

    hyperparameters: those of `mpadam.optim.names`; what is not given takes its default.
    masters: of a regime ("fp32" "bf16" "fp8" "fp8e4m3" "nvfp4" "nvfp4s"), or a weight format, by name or as an object.
    Raises ValueError with key, value and remedy for an unknown name, key or value.
    """
    parsed = parse_optimizer_name(name) if isinstance(name, str) else name
    values = check_hyperparameters(parsed, hyperparameters)
    groups = model_or_groups
    if isinstance(groups, nn.Module):
        weight_format = card_of(masters).name if isinstance(masters, str) else masters
        groups = parameter_groups(groups, weight_format=weight_format)
    # A shadow accompanies codes, and only projections are stored as codes.
    groups = [{"shadow": shadow, **group} if group.get("role") == "projection" else group for group in groups]
    options = _keywords(parsed, values) | {
        "write_back": parsed.write_back,
        "state_dtype": state_dtype,
        "carry_dtype": carry_dtype,
        "shadow_dtype": shadow_dtype,
        "apollo_scope": apollo_scope,
        "seed": seed,
        "compile": compile,
        "tie_lr_mult": False,  # a study says how each rate moves
    }
    cls = optimizer_class(RULES[parsed.rule])
    return cls(groups, **{key: value for key, value in options.items() if key in cls.signature.parameters})


def _keywords(name: OptimizerName, values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters and name as keywords of the class: beta1 and beta2 become `betas` where there are two."""
    keywords = dict(values)
    if {"beta1", "beta2"} <= keywords.keys():
        keywords["betas"] = (keywords.pop("beta1"), keywords.pop("beta2"))
    if name.form is not None:
        keywords |= {"multiplicative_form": name.form, "second_moment": name.second_moment}
    return keywords
