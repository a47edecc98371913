"""What a rule is declared with: its card, its hyper-parameters, and what its function takes and returns. No torch here.

A rule is one file in `mpadam.optim.rules` that declares a `Rule`. All that needs to know something of it asks the card:
names, validation of a study, the optimizer class, the cost model, probes, diagnostics, the memory table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Scalar: TypeAlias = "float | Tensor"
State: TypeAlias = "dict[str, Tensor]"
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


# Hyper-parameters that several rules share. A rule takes one as it is, or with another default: replace(LR, default=1).
LR = Hyperparameter("lr", 8e-5, "additive rate eta_a", schedule="additive")
LR_MULT = Hyperparameter("lr_mult", 4e-3, "multiplicative rate eta_m", schedule="multiplicative")
BETA1 = Hyperparameter("beta1", 0.87, "decay of the first moment", high=1.0)
BETA2 = Hyperparameter("beta2", 0.98, "decay of the second moments", high=1.0)
# Zero would make 0/0 of a zero gradient; below 1e-38 a float32 is subnormal and some devices flush it to zero.
EPS = Hyperparameter("eps", 1e-20, "added to the root of the second moment", low=1e-38, high=1.0)
DECAY = Hyperparameter("weight_decay", 0.1, "decoupled decay, times lr")
DECAY_MULT = Hyperparameter("weight_decay_mult", 0.01, "decoupled decay, times lr_mult")
TAU = Hyperparameter("tau", 1e-8, "least divisor rho", low_open=True)
CLIP = Hyperparameter(
    "max_relative_step", 0.75, "bound r_max on u_m", high=1.0, low_open=True, high_open=False, optional=True
)
BLOCK_SCALE = Hyperparameter(
    "block_scale_exponent",
    0.0,
    "lr_mult times (block scale / typical block scale) to this power",
    low=-2.0,
    high=2.0,
    high_open=False,
)
#: of Apollo-E, for every rule with a multiplicative form
RANK = Hyperparameter("apollo_rank", 4, "rows of the projected exponent gradient", low=1, integer=True)
REFRESH = Hyperparameter("apollo_refresh", 200, "updates between two projections", low=1, integer=True)
SHARED = (LR, LR_MULT, BETA1, BETA2, EPS, DECAY, DECAY_MULT, TAU, CLIP, BLOCK_SCALE, RANK, REFRESH)


# --- what a rule's function takes and returns ------------------------------------------------------------------------


class Step(NamedTuple):
    """What is to be added to w, by branch; each term broadcasts against w (a branch that a rule lacks is a 0-d zero).

    additive: u_a.  multiplicative: w * u_m.  decay: -(eta_a wd + eta_m wd_mult) w.
    """

    additive: Tensor
    multiplicative: Tensor
    decay: Tensor

    @property
    def delta(self) -> Tensor:
        """w_new - w before rounding."""
        return self.additive + self.multiplicative + self.decay


class Decay(NamedTuple):
    """beta and 1 - beta; a compiled graph takes both, for beta in float32 no longer gives the other."""

    kept: Scalar
    taken: Scalar


class Rates(NamedTuple):
    """Hyper-parameters at update t: what changes from step to step.

    additive: eta_a / (1 - b1^t): the bias correction of m is folded in, which saves a rounding and a pass. A rule
        without beta1 gets eta_a.
    multiplicative: eta_m.
    decay: eta_a wd + eta_m wd_mult.
    correction: 1 - b2^t, the bias correction of the second moments.
    """

    additive: Scalar
    multiplicative: Scalar
    decay: Scalar
    correction: Scalar


@dataclass(frozen=True)
class Constants:
    """Hyper-parameters of a rule that do not depend on t. Words, and whether a number is there at all, are part of a
    compiled graph (`form`); the numbers, which a scheduler may move, are its arguments.

    own: numbers of one rule alone, which its function reads as `constants.number("name")`.
    """

    beta1: float | Decay = 0.87
    beta2: float | Decay = 0.98
    eps: Scalar = 1e-20
    tau: Scalar = 1e-8
    max_relative_step: Scalar | None = 0.75
    multiplicative_form: str | None = "normalized_rho"
    block_scale_exponent: Scalar = 0.0
    second_moment: str = "full"
    apollo_rank: int = 4
    own: tuple[tuple[str, Scalar], ...] = ()

    @property
    def decay1(self) -> Decay:
        return self.beta1 if isinstance(self.beta1, Decay) else Decay(self.beta1, 1.0 - self.beta1)

    @property
    def decay2(self) -> Decay:
        return self.beta2 if isinstance(self.beta2, Decay) else Decay(self.beta2, 1.0 - self.beta2)

    @property
    def modulates(self) -> bool:
        """Whether the multiplicative rate depends on the block scale."""
        exponent = self.block_scale_exponent
        return not isinstance(exponent, (int, float)) or exponent != 0

    def number(self, name: str) -> Scalar:
        return dict(self.own)[name]

    def form(self) -> Constants:
        """These constants with each number replaced by one that stands for all."""
        clip = None if self.max_relative_step is None else 1.0
        own = tuple((name, 1.0) for name, _ in self.own)
        block = float(self.modulates)
        return replace(
            self, beta1=0.5, beta2=0.5, eps=1.0, tau=1.0, max_relative_step=clip, block_scale_exponent=block, own=own
        )

    def numbers(self) -> tuple[float, ...]:
        """The numbers that `form` leaves out, for `with_numbers`."""
        clip = 0.0 if self.max_relative_step is None else self.max_relative_step
        rest = (self.eps, self.tau, clip, self.block_scale_exponent, *(value for _, value in self.own))
        return tuple(map(float, (*self.decay1, *self.decay2, *rest)))

    def with_numbers(self, numbers: Sequence[Tensor]) -> Constants:
        """A form with the `numbers` of constants, 0-d float32 tensors, in their places."""
        beta1, taken1, beta2, taken2, eps, tau, clip, exponent, *own = numbers
        return Constants(
            Decay(beta1, taken1),
            Decay(beta2, taken2),
            eps,
            tau,
            None if self.max_relative_step is None else clip,
            self.multiplicative_form,
            exponent if self.modulates else 0.0,
            self.second_moment,
            self.apollo_rank,
            tuple((name, value) for (name, _), value in zip(self.own, own, strict=True)),
        )


class StepFunction(Protocol):
    """The function of a rule; it changes nothing in place and rounds nothing below float32.

    w, g: float32 [*shape], weight and gradient.  state: name -> float32 [*shape]; `v_r` is [rank, columns] or
    [rows, rank].  projection: float32 [rank, smaller dimension], of Apollo-E alone.
    Returns the step, and the new states before they are rounded to the dtype they are kept in.
    """

    def __call__(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], c: Constants, r: Rates, *, projection: Tensor | None
    ) -> tuple[Step, State]: ...


class FeedbackFunction(Protocol):
    """What ECO makes of the new states of a rule, given the rounding error of the weight; it changes nothing in place.

    state: name -> float32 [*shape], as the rule's function returned it.  error: float32 [*shape], what was to be stored
    minus what is.  Returns all states.
    """

    def __call__(self, state: State, error: Tensor, c: Constants, r: Rates) -> State: ...


# --- the card --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """All that is declared of a rule.

    name: in names of optimizers.  title: of its class.  summary: docstring of its class.
    step: its function.
    states: those that have the shape of the weight, all zero at first; names of second moments begin with v.
    branches: the parts of its `Step` that are not zero.
    hyperparameters: in the order in which a study lists them.
    forms: word in the optimizer's name -> `multiplicative_form`; the form with no word is the default. A rule without
        the multiplicative branch of `mpadam.optim.branches` has none.
    feedback: how a rounding error enters its states, or None where ECO is not defined for it.
    whole: its function looks at the whole tensor, so it can neither be cut into shards nor seen as a row of numbers.
    """

    name: str
    title: str
    summary: str
    step: StepFunction
    states: tuple[str, ...]
    branches: tuple[Branch, ...]
    hyperparameters: tuple[Hyperparameter, ...]
    forms: Mapping[str, str | None] = field(default_factory=lambda: {"": None}, hash=False)
    feedback: FeedbackFunction | None = None
    whole: bool = False

    @property
    def has_forms(self) -> bool:
        return self.forms[""] is not None

    def state_names(self, form: str | None, second_moment: str = "full") -> tuple[str, ...]:
        """Names of the states that it keeps; the second moment of the multiplicative branch depends on its form."""
        if not self.has_forms or form == "unnormalized_rho":
            return self.states
        return (*self.states, "v_r" if second_moment == "apollo_e" else "v_e")

    def looks_at_whole(self, c: Constants) -> bool:
        """Whether an element of its step depends on other elements than its own."""
        of_branch = c.second_moment == "apollo_e" or c.multiplicative_form == "normalized_rho_tensor" or c.modulates
        return self.whole or (self.has_forms and of_branch)

    def numbers(self) -> tuple[str, ...]:
        """Hyper-parameters of its own that its function reads from `Constants.own`."""
        shared = {h.name for h in SHARED}
        return tuple(h.name for h in self.hyperparameters if h.name not in shared and h.schedule is None)
