"""Which hyper-parameters an optimizer takes, with default, range and the schedule that moves it. No torch here.

The ranges are the ones that the optimizer classes enforce, so a study can check an entry before any job starts:

    >>> check_hyperparameters("adamw", {"lr": 1e-3})["beta2"]
    0.98
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mpadam.optim.names import OptimizerName, parse_optimizer_name

Branch = Literal["additive", "multiplicative"]


@dataclass(frozen=True)
class Hyperparameter:
    """One number of a rule.

    default: value where none is given; None is a value only if `optional`.
    low, high: valid range; an open end is excluded.
    schedule: the branch whose schedule multiplies it, or None where it stays put.
    """

    name: str
    default: float | None
    meaning: str
    low: float = 0.0
    high: float = math.inf
    low_open: bool = False
    high_open: bool = True
    integer: bool = False
    optional: bool = False
    schedule: Branch | None = None

    @property
    def range(self) -> str:
        """As mathematicians write it: `[0, 1)`, with `or None` where leaving it out is a choice."""
        ends = f"{'(' if self.low_open else '['}{self.low:g}, {self.high:g}{')' if self.high_open else ']'}"
        return ends + (" whole" if self.integer else "") + (" or None" if self.optional else "")

    def check(self, value: object) -> float | int | None:
        """`value` as a number; ValueError with name, value and range if it is none or lies outside."""
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self._holds(float(value)):
            raise ValueError(f"{self.name} = {value!r}: give a number in {self.range}, for example {self.default}")
        return int(value) if self.integer else float(value)

    def _holds(self, value: float) -> bool:
        above = value > self.low or (value == self.low and not self.low_open)
        below = value < self.high or (value == self.high and not self.high_open)
        return above and below and math.isfinite(value) and (not self.integer or value == int(value))


_LR = Hyperparameter("lr", 8e-5, "additive rate eta_a", schedule="additive")
_LR_MULT = Hyperparameter("lr_mult", 4e-3, "multiplicative rate eta_m", schedule="multiplicative")
_BETA1 = Hyperparameter("beta1", 0.87, "decay of the first moment", high=1.0)
_BETA2 = Hyperparameter("beta2", 0.98, "decay of the second moments", high=1.0)
# Zero would make 0/0 of a zero gradient; below 1e-38 a float32 is subnormal and some devices flush it to zero.
_EPS = Hyperparameter("eps", 1e-20, "added to the root of the second moment", low=1e-38, high=1.0)
_DECAY = Hyperparameter("weight_decay", 0.1, "decoupled decay, times lr")
_DECAY_MULT = Hyperparameter("weight_decay_mult", 0.01, "decoupled decay, times lr_mult")
_TAU = Hyperparameter("tau", 1e-8, "least divisor rho", low_open=True)
_CLIP = Hyperparameter(
    "max_relative_step",
    0.75,
    "bound r_max on u_m",
    high=1.0,
    low_open=True,
    high_open=False,
    optional=True,
)
_BLOCK = Hyperparameter(
    "block_scale_exponent",
    0.0,
    "lr_mult times (block scale / typical block scale) to this power",
    low=-2.0,
    high=2.0,
    high_open=False,
)
_RANK = Hyperparameter("apollo_rank", 4, "rows of the projected exponent gradient", low=1, integer=True)
_REFRESH = Hyperparameter("apollo_refresh", 200, "updates between two projections", low=1, integer=True)

_ADDITIVE = (_LR, _BETA1, _BETA2, _EPS, _DECAY)
_BY_RULE: Mapping[str, tuple[Hyperparameter, ...]] = {
    "adamw": (replace(_LR, default=1e-3), _BETA1, _BETA2, _EPS, _DECAY),
    "madam": (
        replace(_LR_MULT, name="lr", meaning="the only rate, multiplicative: eta_m"),
        _BETA2,
        _EPS,
        replace(_DECAY_MULT, name="weight_decay", meaning="decoupled decay, times lr"),
        _TAU,
        _CLIP,
    ),
    "m-plus-adam": (*_ADDITIVE, _LR_MULT, _DECAY_MULT, _TAU, _CLIP, _BLOCK),
    "additive-twin": (*_ADDITIVE, _LR_MULT, _DECAY_MULT, _CLIP),
}
#: every hyper-parameter there is, by name, with the ranges that hold for all rules
ALL: Mapping[str, Hyperparameter] = {
    h.name: h for h in (_LR, _LR_MULT, _BETA1, _BETA2, _EPS, _DECAY, _DECAY_MULT, _TAU, _CLIP, _BLOCK, _RANK, _REFRESH)
}


def hyperparameters_of(name: OptimizerName | str) -> dict[str, Hyperparameter]:
    """name -> `Hyperparameter` of everything that this optimizer takes."""
    parsed = parse_optimizer_name(name) if isinstance(name, str) else name
    rows = [h for h in _BY_RULE[parsed.rule] if h.name != "tau" or parsed.form != "relative"]
    if parsed.second_moment == "apollo_e":
        rows += [_RANK, _REFRESH]
    return {h.name: h for h in rows}


def check_hyperparameters(name: OptimizerName | str, values: Mapping[str, object]) -> dict[str, float | int | None]:
    """All hyper-parameters of the optimizer: those given, checked, and the defaults of the others.

    `betas: [b1, b2]` may stand for `beta1` and `beta2`. Raises ValueError with key, value and remedy.
    """
    known = hyperparameters_of(name)
    given = _without_pair(values)
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"{name} takes no hyper-parameter {key!r}: {hint}It takes {', '.join(known)}")
    return {key: h.check(given.get(key, h.default)) for key, h in known.items()}


def _without_pair(values: Mapping[str, object]) -> dict[str, object]:
    given = dict(values)
    if "betas" not in given:
        return given
    pair = given.pop("betas")
    if not isinstance(pair, (list, tuple)) or len(pair) != 2 or {"beta1", "beta2"} & given.keys():
        raise ValueError(f"betas = {pair!r}: give a pair such as [0.87, 0.98], or beta1 and beta2, not both")
    return {**given, "beta1": pair[0], "beta2": pair[1]}
