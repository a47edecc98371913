"""The quartiles of a few samples, by one definition everywhere."""

import statistics
from collections.abc import Sequence


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; all equal where there is one sample."""
    if len(samples) == 1:
        return (samples[0],) * 3
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, statistics.median(samples), high
