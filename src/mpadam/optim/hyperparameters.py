"""Which hyper-parameters an optimizer takes, with default, range and the schedule that moves it. No torch here.

The ranges are the ones that the optimizer classes enforce, so a study can check an entry before any job starts:

    >>> check_hyperparameters("adamw", {"lr": 1e-3})["beta2"]
    0.98
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace

from mpadam.optim.card import RANK, REFRESH, SHARED, Hyperparameter
from mpadam.optim.names import ERROR_FEEDBACK, OptimizerName, parse_optimizer_name
from mpadam.optim.rules import RULES


def all_hyperparameters() -> dict[str, Hyperparameter]:
    """Every hyper-parameter there is, by name; those that several rules share with the range that holds for all."""
    own = {h.name: h for rule in RULES.values() for h in rule.hyperparameters}
    return {h.name: h for h in SHARED} | {name: h for name, h in own.items() if name not in {s.name for s in SHARED}}


def hyperparameters_of(name: OptimizerName | str) -> dict[str, Hyperparameter]:
    """name -> `Hyperparameter` of everything that this optimizer takes."""
    parsed = parse_optimizer_name(name) if isinstance(name, str) else name
    rows = [h for h in RULES[parsed.rule].hyperparameters if h.name != "tau" or parsed.form != "relative"]
    if parsed.second_moment == "apollo_e":
        rows += [RANK, REFRESH]
    known = {h.name: h for h in rows}
    if parsed.write_back in ERROR_FEEDBACK:  # which divides by it
        known["beta1"] = replace(known["beta1"], low_open=True)
    return known


def check_hyperparameters(name: OptimizerName | str, values: Mapping[str, object]) -> dict[str, float | int | None]:
    """All hyper-parameters of the optimizer: those given, checked, and the defaults of the others.

    Raises ValueError with key, value and remedy.
    """
    known = hyperparameters_of(name)
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"{name} takes no hyper-parameter {key!r}: {hint}It takes {', '.join(known)}")
    return {key: h.check(values.get(key, h.default)) for key, h in known.items()}
