"""Numbers and outcomes of claims in words: what an interval shows, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpadam.claims.data import Claim, Perplexity, Probe, Trend


def signed(value: float | None) -> str:
    """`+0.0123`, or nothing."""
    return "" if value is None else f"{value:+.4f}"


def interval_text(interval: Sequence[float] | None) -> str:
    """`+0.0123 to +0.0456`, or nothing."""
    return "" if interval is None else " to ".join(map(signed, interval))


def gain_text(value: float) -> str:
    """A difference of ln perplexity as the share by which the second perplexity is lower: `+2.3%`, as in Table 2."""
    return f"{-math.expm1(-value):+.1%}"


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
