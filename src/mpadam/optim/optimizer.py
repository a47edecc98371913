"""The public classes for any training loop, one per rule card: `MPlusAdam`, `AdamW`, `Madam`, `AdditiveTwin`.

    optimizer = MPlusAdam(model.parameters(), lr=8e-5, lr_mult=4e-3)
    loss.backward(); optimizer.step(); optimizer.zero_grad()

Options that all of them share, each also per parameter group:

weight_format   what the weights are kept in: a name ("fp32" "bf16" "fp8_e4m3" "fp8_e5m2" "nvfp4" "nvfp4_sticky"), a
                format object, or None for the parameter's own dtype. If it is not the parameter's dtype, the optimizer
                holds the weight and the parameter is its compute copy.
write_back      "nearest" | "stochastic" | "kahan" | "eco" | "eco_stochastic": how an update is rounded into the
                format, and what becomes of the part that it cannot hold; both ECOs are for AdamW alone.
state_dtype     of the moments: "fp32" | "bf16" (or the torch dtypes), None for the parameter's dtype.
carry_dtype     of Kahan's carry; None is "bf16", which holds 8 bits below the weight's own.
shadow          "none" | "refreshed" | "persistent", with shadow_dtype (None: as the states): only for stored codes.
seed            of the rounding bits and of Apollo-E's projections.
compile         whether steps go through torch.compile: True, False, or "auto", where the optimizer trains enough
                parameters to gain from it (`mpadam.optim.compiled.GAINS_FROM`) and a compiler is found.

A standard scheduler moves only `lr`. `tie_lr_mult=True` moves `lr_mult` along with it, False leaves it where it is, and
None, the default, does the same with a warning. Every bad value is a ValueError that names key, value and remedy.
Equations: docs/algorithm.md. Hyper-parameters with defaults and ranges: `mpadam.optim.rules`.
"""

from collections.abc import Iterator
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.card import RANK, REFRESH, Rule
from mpadam.optim.rules import RULES

#: options of every class, with their defaults; what they mean: see the module
_COMMON = {
    "write_back": "nearest",
    "weight_format": None,
    "state_dtype": None,
    "carry_dtype": None,
    "shadow": "none",
    "shadow_dtype": None,
    "seed": 0,
    "compile": "auto",
}


@cache
def optimizer_class(rule: Rule) -> type[LowPrecisionOptimizer]:
    """The class of a rule, whose signature is what its card declares; the same object at each call."""
    attributes = {"rule": rule.name, "signature": _signature(rule), "__doc__": rule.summary, "__module__": __name__}
    return type(rule.title, (LowPrecisionOptimizer,), attributes | {"__signature__": attributes["signature"]})


def _signature(rule: Rule) -> Signature:
    params = Parameter("params", Parameter.POSITIONAL_OR_KEYWORD)
    rates = [h.name for h in rule.hyperparameters if h.schedule is not None]
    options = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD if name in rates else Parameter.KEYWORD_ONLY, default=default)
        for name, default in _options(rule)
    ]
    return Signature([params, *sorted(options, key=lambda option: option.kind)], return_annotation=None)


def _options(rule: Rule) -> Iterator[tuple[str, Any]]:
    """Every option and its default; beta1 and beta2 are one pair where a rule has both."""
    defaults = {h.name: h.default for h in rule.hyperparameters}
    if "beta1" in defaults and "beta2" in defaults:
        yield "betas", (defaults.pop("beta1"), defaults.pop("beta2"))
    yield from defaults.items()
    if rule.has_forms:
        yield from (("multiplicative_form", rule.forms[""]), ("second_moment", "full"))
        yield from ((h.name, h.default) for h in (RANK, REFRESH))
        yield "apollo_scope", "projections"
    yield from _COMMON.items()
    if "lr_mult" in defaults:
        yield "tie_lr_mult", None


def __getattr__(title: str) -> type[LowPrecisionOptimizer]:
    for rule in RULES.values():
        if rule.title == title:
            return optimizer_class(rule)
    raise AttributeError(f"module {__name__!r} has no attribute {title!r}")
