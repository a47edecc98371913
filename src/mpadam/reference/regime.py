"""The regime of a launch command: how weights are stored, what multiplies them (docs/algorithm.md, "Where")."""

from collections.abc import Mapping
from typing import Any

from mpadam.reference.command import Value

#: `--fp8_format` -> `masters`
MASTERS = {"e5m2": "fp8", "e4m3": "fp8e4m3"}
RECIPES = ("hybrid_delayed",)
#: What the study's regimes are where nothing else is said; only what differs is written.
DEFAULTS: Mapping[str, Any] = {
    "block_size": 256,
    "power_of_two_scale": True,
    "recipe": "hybrid_delayed",
    "amax_history": 16,
    "margin": 0,
    "fp8_eval": False,
}
_OPTIONS = {
    "masters": {"fp8_block_size": "block_size", "fp8_pow2_scale": "power_of_two_scale"},
    "compute": {
        "te_recipe": "recipe",
        "te_amax_history": "amax_history",
        "te_margin": "margin",
        "te_fp8_eval": "fp8_eval",
    },
}


def regime_of(given: Mapping[str, Value]) -> tuple[dict[str, Any], str]:
    """The regime's fields, and its name.

    Raises ValueError for an FP8 flag without the switch that gives it a meaning, and for unknown formats and recipes.
    """
    masters, compute = _masters(given), "fp8" if given.get("te_fp8_gemm") else "bf16"
    _check_orphans(given)
    options: dict[str, Any] = {}
    if masters != "bf16":
        options |= _options(given, "masters") | {"power_of_two_scale": bool(given.get("fp8_pow2_scale", False))}
    if compute == "fp8":
        options |= _options(given, "compute")
    if options.get("recipe", RECIPES[0]) not in RECIPES:
        raise ValueError(f"--te_recipe {options['recipe']}: not one of {', '.join(RECIPES)}")
    other = {key: value for key, value in options.items() if value != DEFAULTS[key]}
    return {"masters": masters, "compute": compute, **other}, f"{masters}-{compute}"


def _masters(given: Mapping[str, Value]) -> str:
    if not given.get("fp8_true_master"):
        return "bf16"
    name = str(given.get("fp8_format", "e5m2"))
    if name not in MASTERS:
        raise ValueError(f"--fp8_format {name}: not one of {', '.join(MASTERS)}")
    return MASTERS[name]


def _check_orphans(given: Mapping[str, Value]) -> None:
    """A format without FP8 masters is a command that does not say what its author meant."""
    for prefix, switch in (("fp8_", "fp8_true_master"), ("te_", "te_fp8_gemm")):
        orphans = [name for name in given if name.startswith(prefix) and name != "fp8_adam_state_dtype"]
        if orphans and switch not in given:
            raise ValueError(f"--{orphans[0]} means nothing without --{switch}: add that, or drop it")


def _options(given: Mapping[str, Value], where: str) -> dict[str, Any]:
    return {key: given[flag] for flag, key in _OPTIONS[where].items() if flag in given}
