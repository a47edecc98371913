"""Numbers and outcomes of claims in words: what an interval shows, and no more."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mpadam.analysis.statistics import gain
from mpadam.claims.data import UNITS, Claim, Perplexity, Probe, Trend


def signed(value: float | None) -> str:
    """`+0.0123`, or nothing."""
    return "" if value is None else f"{value:+.4f}"


def interval_text(interval: Sequence[float] | None) -> str:
    """`+0.0123 to +0.0456`, or nothing."""
    return "" if interval is None else " to ".join(map(signed, interval))


#: the same as the share by which the first is higher
cost = math.expm1


@dataclass(frozen=True)
class Writer:
    number: Callable[[float], str]
    unit: str

    def text(self, mean: float, interval: Sequence[float] | None) -> str:
        """`+2.4% (-1.2 to +6.1)`."""
        ends = f" ({' to '.join(map(self.number, interval))})" if interval else ""
        return f"{self.number(mean)}{self.unit}{ends}"

    def span(self, ends: Sequence[float]) -> str:
        """`-1.2 to +6.1`, or one number where both are written alike."""
        return " to ".join(dict.fromkeys(map(self.number, ends)))


def _hundredths(value: float) -> str:
    """Of one, with a sign, and none that is negative zero."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"


GAIN = Writer(lambda value: _hundredths(gain(value)), "%")
COST = Writer(lambda value: _hundredths(cost(value)), "%")
_POINTS = Writer(_hundredths, " points")
_SHARE = Writer(lambda value: f"{100 * value:.1f}", "%")
_WRITERS = {
    UNITS["perplexity"]: GAIN,
    UNITS["trend"]: replace(GAIN, unit="% per step"),
    UNITS["fit"]: Writer(lambda value: f"{math.exp(value):.3g}", " times"),
    UNITS["rates"]: Writer(lambda value: f"{2**value:.3g}", " times"),
    "share of ticks": replace(_SHARE, unit="% of ticks"),
}


def writer(unit: str, *, of_differences: bool) -> Writer:
    """For the numbers of a claim; logarithms become percent or factors. of_differences: they compare two things."""
    if unit == UNITS["probe"]:
        return _POINTS if of_differences else _SHARE
    return _WRITERS.get(unit) or Writer(
        lambda value: f"{round(value, 4) + 0.0:.3g}", f" {unit.partition(' of ')[0]}".rstrip()
    )


def shown(claim: Claim, mean: float, interval: Sequence[float]) -> str:
    """What a cell with a verdict shows: on which side of the threshold it lies, and of 0 where that is not implied.

    interval: that of the whole family. A gain below half a percent need not be a loss.
    """
    bound = _bound(claim)
    if claim.direction in ("within", "outside"):
        return f"shown to lie {'within' if abs(mean) < claim.threshold else 'outside'} ±{bound.lstrip('+')}"
    above = mean > claim.threshold
    told = f"shown to be {'above' if above else 'below'} {bound}"
    if not _of_differences(claim) or claim.threshold == 0 or above == (claim.threshold > 0):
        return told
    side = "above 0" if interval[0] > 0 else "below 0" if interval[1] < 0 else "not shown to differ from 0"
    return f"{told}; {side}"


def _bound(claim: Claim) -> str:
    if isinstance(claim.metric, Perplexity | Trend) and claim.threshold:
        return f"{claim.threshold:+.1%}"
    if claim.measured_in == "share" and _of_differences(claim):
        return f"{100 * claim.threshold:+g} points"
    return f"{claim.threshold:g}"


def _of_differences(claim: Claim) -> bool:
    """Whether the claim's number compares two things, so that 0 means that they are alike."""
    return not isinstance(claim.metric, Probe) or all(len(contrast.terms) > 1 for contrast in claim.metric.contrasts)
