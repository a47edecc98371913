"""Estimates and gains, against scipy and by hand; a failure is never averaged away."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mpadam.analysis.statistics import Estimate, estimate, mean_gain

numbers = st.floats(-1e3, 1e3, allow_nan=False)


@given(values=st.lists(numbers, min_size=2, max_size=8), confidence=st.sampled_from([0.9, 0.95, 0.99]))
def test_estimate_is_what_scipy_says(values: list[float], confidence: float) -> None:
    found = estimate(values, confidence=confidence)
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    assert found.n == len(values)
    assert [found.mean, found.sd] == pytest.approx([mean, sd], rel=1e-9, abs=1e-9)
    if sd > 1e-9:  # scipy calls an interval of no width NaN
        interval = stats.t.interval(confidence, len(values) - 1, mean, stats.sem(values))
        assert [found.low, found.high] == pytest.approx(list(interval), rel=1e-9, abs=1e-9)


def test_interval_covers_the_mean_as_often_as_it_says_at_three_seeds() -> None:
    draws = np.random.default_rng(0).normal(3.0, 0.1, size=(4000, 3))
    covered = 0
    for row in draws:
        found = estimate(row.tolist())
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 3.0 <= found.high
    assert abs(covered / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


def test_a_single_value_has_no_spread() -> None:
    assert estimate([3.1]) == Estimate(n=1, mean=3.1, sd=None, low=None, high=None)


@pytest.mark.parametrize("values", [[], [3.1, math.nan], [3.1, math.inf], [-math.inf]])
def test_T6_no_mean_of_a_failure(values: list[float]) -> None:
    with pytest.raises(ValueError, match="count the runs that failed"):
        estimate(values)


def test_gains_pair_equal_seeds_only() -> None:
    found = mean_gain({0: 20.0, 1: 10.0, 2: 5.0}, {2: 6.0, 0: 15.0, 7: 1.0})
    assert found is not None
    assert (found.n, found.mean) == (2, pytest.approx(1 - math.sqrt(0.75 * 1.2)))
    assert mean_gain({0: 20.0}, {1: 15.0}) is None


def test_gain_is_the_papers() -> None:
    """As the paper reports: 350m in bf16-bf16, 19.156 against 16.607, a gain of 13.3%."""
    found = mean_gain({0: 19.156}, {0: 16.607})
    assert found is not None
    assert found.mean == pytest.approx(0.133, abs=5e-4)
    assert (found.low, found.high) == (None, None)
