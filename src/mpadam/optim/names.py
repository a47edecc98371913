"""Names of optimizers: `<rule>[-<form>][-apollo-e][-sr|-kahan]`, composed and parsed, not enumerated.

    >>> parse_optimizer_name("m-plus-adam-relative-sr")
    OptimizerName(rule='m-plus-adam', form='relative', second_moment='full', write_back='stochastic')

No torch here: Snakemake parses names while it builds the DAG.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from mpadam.optim.rules import RULES

SECOND_MOMENTS: Mapping[str, str] = MappingProxyType({"": "full", "apollo-e": "apollo_e"})
WRITE_BACKS: Mapping[str, str] = MappingProxyType({"": "nearest", "sr": "stochastic", "kahan": "kahan"})

#: option of an optimizer -> the words it may be
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "multiplicative_form": ("normalized_rho", "normalized_rho_tensor", "relative", "unnormalized_rho"),
        "second_moment": tuple(SECOND_MOMENTS.values()),
        "apollo_scope": ("projections", "all_2d"),
        "write_back": tuple(WRITE_BACKS.values()),
        "shadow": ("none", "refreshed", "persistent"),
    }
)


@dataclass(frozen=True)
class OptimizerName:
    """What a name says.

    rule: name of a card in `mpadam.optim.rules`
    form: value of `multiplicative_form`, or None for a rule without a multiplicative branch
    second_moment: "full" | "apollo_e"
    write_back: "nearest" | "stochastic" | "kahan"
    """

    rule: str
    form: str | None = None
    second_moment: str = "full"
    write_back: str = "nearest"

    def __str__(self) -> str:
        words = (
            self.rule,
            _word(RULES[self.rule].forms, self.form),
            _word(SECOND_MOMENTS, self.second_moment),
            _word(WRITE_BACKS, self.write_back),
        )
        return "-".join(word for word in words if word)


def _word(words: Mapping[str, str | None] | Mapping[str, str], value: str | None) -> str:
    return next(word for word, meaning in words.items() if meaning == value)


def check_choices(options: Mapping[str, object]) -> None:
    """ValueError with key, value and remedy for an option outside `CHOICES`, or two that exclude each other."""
    for key, words in CHOICES.items():
        if key in options and options[key] not in words:
            raise ValueError(f"{key} = {options[key]!r}: give one of {', '.join(words)}")
    if options.get("multiplicative_form") == "unnormalized_rho" and options.get("second_moment") == "apollo_e":
        raise ValueError(
            "second_moment = 'apollo_e' compresses v_e, which 'unnormalized_rho' does not have; use 'full'"
        )


def _is_defined(rule: str, form: str | None, second_moment: str) -> bool:
    """Apollo-E compresses v_e: rules and forms without v_e have nothing to compress (paper.md section 2)."""
    return second_moment == "full" or "v_e" in RULES[rule].state_names(form)


def optimizer_names() -> tuple[str, ...]:
    """Every name that `parse_optimizer_name` accepts."""
    return tuple(
        str(OptimizerName(rule, form, second_moment, write_back))
        for rule, card in RULES.items()
        for form, second_moment, write_back in product(
            card.forms.values(), SECOND_MOMENTS.values(), WRITE_BACKS.values()
        )
        if _is_defined(rule, form, second_moment)
    )


def _take_suffix(rest: str, words: Mapping[str, str]) -> tuple[str, str]:
    """`("a-sr", WRITE_BACKS) -> ("a", "stochastic")`"""
    for word, meaning in words.items():
        if word and rest.endswith("-" + word):
            return rest.removesuffix("-" + word), meaning
    return rest, words[""]


def parse_optimizer_name(name: str) -> OptimizerName:
    """Read `<rule>[-<form>][-apollo-e][-sr|-kahan]`.

    Raises ValueError, with the closest accepted name, for anything else, and for Apollo-E where no v_e exists.
    """
    rest, write_back = _take_suffix(name, WRITE_BACKS) if isinstance(name, str) else ("", "nearest")
    rest, second_moment = _take_suffix(rest, SECOND_MOMENTS)
    for rule, card in RULES.items():
        forms = card.forms
        word = rest.removeprefix(rule).removeprefix("-")
        if not rest.startswith(rule) or word not in forms or rest != "-".join(filter(None, (rule, word))):
            continue
        if not _is_defined(rule, forms[word], second_moment):
            raise ValueError(f"optimizer {name!r}: apollo-e compresses v_e, which {rest!r} does not have; drop it")
        return OptimizerName(rule, forms[word], second_moment, write_back)
    raise ValueError(_unknown(name))


def _unknown(name: object) -> str:
    close = difflib.get_close_matches(str(name), optimizer_names(), n=1, cutoff=0.0)[0]
    return (
        f"optimizer {name!r} is not known; did you mean {close!r}? "
        "A name is <rule>[-<form>][-apollo-e][-sr|-kahan], with rule one of " + ", ".join(RULES)
    )
