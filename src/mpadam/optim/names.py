"""Names of optimizers: `<rule>[-<form>][-apollo-e][-sr|-kahan|-eco|-eco-sr]`, composed and parsed, not enumerated. And
which hyper-parameters the optimizer of a name takes, with default, range and the schedule that moves it.

    >>> parse_optimizer_name("m-plus-adam-relative-sr")
    OptimizerName(rule='m-plus-adam', form='relative', second_moment='full', write_back='stochastic')
    >>> check_hyperparameters("adamw", {"lr": 1e-3})["beta2"]
    0.98

The ranges are the ones that the optimizer classes enforce, so a study can check an entry before any job starts. No
torch here: Snakemake parses names while it builds the DAG.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

from mpadam.optim.card import RANK, REFRESH, SHARED, Hyperparameter
from mpadam.optim.rules import RULES

SECOND_MOMENTS: Mapping[str, str] = MappingProxyType({"": "full", "apollo-e": "apollo_e"})
WRITE_BACKS: Mapping[str, str] = MappingProxyType(
    {"": "nearest", "sr": "stochastic", "kahan": "kahan", "eco": "eco", "eco-sr": "eco_stochastic"}
)
#: write-backs that round by chance, and those that add the rounding error to the first moment
BY_CHANCE = frozenset({"stochastic", "eco_stochastic"})
ERROR_FEEDBACK = frozenset({"eco", "eco_stochastic"})

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
    write_back: "nearest" | "stochastic" | "kahan" | "eco" | "eco_stochastic"
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
    if options.get("write_back") in ERROR_FEEDBACK and "rule" in options and not _can_feed_back(str(options["rule"])):
        raise ValueError(f"write_back = {options['write_back']!r} with rule = {options['rule']!r}: {_NO_FEEDBACK}")


_NO_FEEDBACK = (
    "ECO returns a rounding error through the first moment of a rule with a single additive branch, such as adamw; "
    "use nearest, stochastic or kahan"
)


def _can_feed_back(rule: str) -> bool:
    return RULES[rule].feedback is not None


def _can_compress(rule: str, form: str | None) -> bool:
    """Apollo-E compresses v_e: rules and forms without v_e have nothing to compress (docs/algorithm.md, (20))."""
    return "v_e" in RULES[rule].state_names(form)


def is_defined(name: OptimizerName) -> bool:
    """Whether second moment and write-back have a meaning for the rule."""
    compressed, fed_back = name.second_moment != "full", name.write_back in ERROR_FEEDBACK
    return (not compressed or _can_compress(name.rule, name.form)) and (not fed_back or _can_feed_back(name.rule))


def optimizer_names() -> tuple[str, ...]:
    """Every name that `parse_optimizer_name` accepts."""
    names = (
        OptimizerName(rule, *words)
        for rule, card in RULES.items()
        for words in product(card.forms.values(), SECOND_MOMENTS.values(), WRITE_BACKS.values())
    )
    return tuple(str(name) for name in names if is_defined(name))


def _take_suffix(rest: str, words: Mapping[str, str]) -> tuple[str, str]:
    """`("a-sr", WRITE_BACKS) -> ("a", "stochastic")`; of several that fit, the longest."""
    word = max((word for word in words if word and rest.endswith("-" + word)), key=len, default="")
    return rest.removesuffix("-" + word) if word else rest, words[word]


def parse_optimizer_name(name: str) -> OptimizerName:
    """Read `<rule>[-<form>][-apollo-e][-sr|-kahan|-eco|-eco-sr]`.

    Raises ValueError, with the closest accepted name, for anything else, for Apollo-E where no v_e exists, and for ECO
    with a rule that does not define it.
    """
    rest, write_back = _take_suffix(name, WRITE_BACKS) if isinstance(name, str) else ("", "nearest")
    rest, second_moment = _take_suffix(rest, SECOND_MOMENTS)
    for rule, card in RULES.items():
        forms = card.forms
        word = rest.removeprefix(rule).removeprefix("-")
        if not rest.startswith(rule) or word not in forms or rest != "-".join(filter(None, (rule, word))):
            continue
        if second_moment != "full" and not _can_compress(rule, forms[word]):
            raise ValueError(f"optimizer {name!r}: apollo-e compresses v_e, which {rest!r} does not have; drop it")
        if write_back in ERROR_FEEDBACK and not _can_feed_back(rule):
            raise ValueError(f"optimizer {name!r}: {_NO_FEEDBACK}")
        return OptimizerName(rule, forms[word], second_moment, write_back)
    close = difflib.get_close_matches(str(name), optimizer_names(), n=1, cutoff=0.0)[0]
    raise ValueError(
        f"optimizer {name!r} is not known; did you mean {close!r}? "
        "A name is <rule>[-<form>][-apollo-e][-sr|-kahan|-eco|-eco-sr], with rule one of " + ", ".join(RULES)
    )


# --- hyper-parameters -------------------------------------------------------------------------------------------------


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
