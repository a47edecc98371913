"""The few statistics that tables and figures need, none of which averages a failure away.

A mean is of finite numbers or it does not exist; a single number has no spread.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtrit


@dataclass(frozen=True)
class Estimate:
    """Mean of `n` values, their standard deviation (n - 1), and Student's interval for the mean.

    `sd`, `low` and `high` are None at n = 1.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


def estimate(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """Mean, spread and t interval of independent values.

    Raises ValueError where a value is not finite, or there is none: such a mean would be a fake.
    """
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"no mean of {list(values)}: count the runs that failed instead")
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(1, mean, None, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * sd / math.sqrt(n)
    return Estimate(n, mean, sd, mean - half, mean + half)


def gain(value: float) -> float:
    """A difference of ln(perplexity) as the share by which the second perplexity is lower."""
    return -math.expm1(-value)


def mean_gain(baseline: Mapping[int, float], other: Mapping[int, float]) -> Estimate | None:
    """The share by which `other` is lower, over the seeds that both have; None without any. Positive is better.

    It is the gain of the mean difference of ln(perplexity), as in the verdicts on claims; `sd` is that of the
    differences.
    """
    differences = [math.log(baseline[seed] / other[seed]) for seed in sorted(baseline.keys() & other.keys())]
    if not differences:
        return None
    found = estimate(differences)
    low, high = (None if end is None else gain(end) for end in (found.low, found.high))
    return replace(found, mean=gain(found.mean), low=low, high=high)
