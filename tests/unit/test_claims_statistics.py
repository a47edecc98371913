"""Statistics of the claims against scipy, by brute force, and by simulation with the rules as they are built."""

from __future__ import annotations

import math
from itertools import chain, combinations, product

import numpy as np
import pytest
from claims_samples import cell, claim
from scipy import stats

from mpadam.claims.statistics import POWER, Flips, flips, holm, p_value, pool, seeds_needed, spread
from mpadam.claims.verdicts import CONTRADICTED, SUPPORTED, judge

RNG = np.random.default_rng(20260712)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_intervals_and_p_values_are_scipys(n: int) -> None:
    values = RNG.normal(0.02, 0.01, n)
    found = spread(values.tolist())
    exact = stats.ttest_1samp(values, 0.005)
    assert found.interval(0.95) == pytest.approx(tuple(exact.confidence_interval(0.95)), rel=1e-12)
    one_sided = stats.ttest_1samp(values, 0.005, alternative="greater").pvalue
    assert found.p_above(0.005) == pytest.approx(one_sided, rel=1e-9)


def test_numbers_without_spread_lie_on_a_side_for_certain() -> None:
    same = spread([0.01, 0.01, 0.01])
    assert (same.p_above(0.005), same.p_above(0.01), same.p_above(0.02)) == (0.0, 0.5, 1.0)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 9])
@pytest.mark.parametrize("threshold", [0.0, 0.005, -0.01])
def test_b6_the_exact_p_is_that_of_all_ways_to_flip_signs(n: int, threshold: float) -> None:
    """Against a plain enumeration and scipy."""
    for values in (RNG.normal(0.02, 0.01, n), RNG.normal(0.0, 0.01, n), np.full(n, 0.02), np.round(RNG.normal(size=n))):
        distances = values - threshold
        sums = [sum(s * d for s, d in zip(signs, distances, strict=True)) for signs in product((1, -1), repeat=n)]
        as_far = [abs(one) >= abs(distances.sum()) - 1e-12 for one in sums]
        found = flips(values.tolist())
        assert found is not None
        p = p_value(found, float(values.mean()), "above", threshold)
        assert p == pytest.approx(sum(as_far) / 2**n, rel=1e-12)
        scipys = stats.permutation_test((distances,), np.mean, permutation_type="samples", n_resamples=2**n)
        assert p == pytest.approx(scipys.pvalue, rel=1e-9)
        assert p >= found.least == 2 / 2**n


def test_b6_the_exact_p_of_a_margin_is_that_of_two_one_sided_tests() -> None:
    def one_sided(values: list[float], margin: float) -> float:
        distances = [value + margin for value in values]
        sums = [sum(s * d for s, d in zip(signs, distances, strict=True)) for signs in product((1, -1), repeat=6)]
        return sum(one >= sum(distances) - 1e-12 for one in sums) / 64

    for values in ([0.001, 0.002, -0.001, 0.0, 0.006, -0.002], [0.02, 0.03, -0.001, 0.04, 0.01, 0.02]):
        mirrored = [-value for value in values]
        above, below = one_sided(values, 0.005), one_sided(mirrored, 0.005)
        beyond = min(one_sided(values, -0.005), one_sided(mirrored, -0.005))
        mean = float(np.mean(values))
        wanted = 2 * max(above, below) if abs(mean) < 0.005 else 2 * beyond
        assert p_value(Flips(tuple(values)), mean, "within", 0.005) == pytest.approx(min(1, wanted))


def test_b6_five_seeds_cannot_show_anything_by_the_exact_p_and_six_can() -> None:
    for n, least in ((5, 0.0625), (6, 0.03125)):
        (found,) = judge(claim(), [cell([0.02 + 0.001 * k for k in range(n)])], alpha=0.05).cells
        assert found.p_flip == least
        assert (found.verdict, found.p < 0.001) == (SUPPORTED, True)
    assert flips([0.1] * 21) is None


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    """Adjusted p of a hypothesis: the largest, over all sets that have it, of size times least p."""
    for k in (1, 2, 5, 7):
        p = RNG.uniform(0, 0.3, k).tolist()
        sets = list(chain.from_iterable(combinations(range(k), size) for size in range(1, k + 1)))
        closed = [min(1, max(len(s) * min(p[j] for j in s) for s in sets if i in s)) for i in range(k)]
        assert holm(p) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize(("distance", "sd", "alpha"), [(0.01, 0.01, 0.05), (0.004, 0.01, 0.05), (0.01, 0.02, 0.005)])
def test_the_seeds_that_decide_are_the_fewest_with_the_power(distance: float, sd: float, alpha: float) -> None:
    def power(n: int) -> float:
        critical = stats.t.isf(alpha / 2, n - 1)
        return float(stats.nct.sf(critical, n - 1, distance / sd * math.sqrt(n)))

    n = seeds_needed(distance, sd, alpha)
    assert n is not None
    assert power(n) >= POWER > power(n - 1)
    assert seeds_needed(-distance, sd, alpha) == n


def test_no_number_of_seeds_shows_a_difference_that_is_not_there() -> None:
    assert seeds_needed(0.0, 0.01, 0.05) is None
    assert seeds_needed(1e-5, 0.01, 0.05) is None
    assert seeds_needed(10.0, 0.01, 0.05) == 3
    assert seeds_needed(0.01, 0.0, 0.05) == 3


def test_one_variance_is_the_largest_with_the_degrees_of_freedom_of_all() -> None:
    first, second = pool([spread([0.0, 0.1, 0.2]), spread([1.0, 1.0, 1.0, 1.0, 1.3])])
    assert (first.n, first.df, second.n, second.df) == (3, 6, 5, 6)
    assert first.sd == second.sd == pytest.approx(np.std([1.0, 1.0, 1.0, 1.0, 1.3], ddof=1))
    assert (first.mean, second.mean) == pytest.approx((0.1, 1.06))


# --- by simulation ---------------------------------------------------------------------------------------------------

FAMILIES, CELLS = 800, 6
#: three standard errors of a share of 5% over that many families
SLACK = 3 * math.sqrt(0.05 * 0.95 / FAMILIES)
EQUAL, UNEQUAL = (0.01,) * CELLS, (0.007, 0.014) * (CELLS // 2)


def share_of_verdicts(
    n: int, sds: tuple[float, ...], *, shared: float = 0.0, pooled: bool = False, **about: object
) -> float:
    """Families with a verdict, whichever way, where every true number lies exactly on the threshold, so none is right.

    shared: of the deviations of a seed that all cells have in common, as runs of one seed do.
    """
    rng = np.random.default_rng([n, len(set(sds)), round(10 * shared), pooled])
    own, common = rng.normal(size=(FAMILIES, CELLS, n)), rng.normal(size=(FAMILIES, 1, n))
    numbers = 0.005 + np.array(sds)[:, None] * (math.sqrt(1 - shared**2) * own + shared * common)
    tested = claim(**about)
    wrong = 0
    for family in numbers:
        samples = [cell(values, contrast=str(k)) for k, values in enumerate(family.tolist())]
        found = judge(tested, samples, alpha=0.05, pooled=pooled)
        wrong += any(one.verdict in (SUPPORTED, CONTRADICTED) for one in found.cells)
    return wrong / FAMILIES


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_cover_the_truth_as_often_as_they_say(n: int) -> None:
    draws = np.random.default_rng(n).normal(0.01, 0.02, (6000, n)).tolist()
    for confidence in (0.95, 1 - 0.05 / CELLS):
        intervals = [spread(values).interval(confidence) for values in draws]
        covered = np.mean([low <= 0.01 <= high for low, high in intervals])
        assert abs(covered - confidence) < 3.5 * math.sqrt(confidence * (1 - confidence) / len(draws))


@pytest.mark.parametrize("n", [3, 5])
def test_a_family_gives_a_wrong_verdict_in_at_most_one_of_twenty_cases(n: int) -> None:
    assert 0.025 < share_of_verdicts(n, EQUAL) <= 0.05 + SLACK
    assert share_of_verdicts(n, UNEQUAL, shared=0.7) <= 0.05 + SLACK


@pytest.mark.parametrize("n", [3, 5])
def test_so_does_one_that_is_about_equivalence(n: int) -> None:
    assert share_of_verdicts(n, EQUAL, direction="within") <= 0.05 + SLACK


@pytest.mark.parametrize("n", [3, 5])
def test_one_variance_for_a_family_holds_its_level_too_with_cells_twice_as_noisy(n: int) -> None:
    assert share_of_verdicts(n, EQUAL, pooled=True) <= 0.05 + SLACK
    assert share_of_verdicts(n, UNEQUAL, shared=0.7, pooled=True) <= 0.05 + SLACK


def test_the_simulation_sees_what_holm_is_for() -> None:
    """Negative control: cells that are families of their own give wrong verdicts in a quarter of the cases."""
    assert share_of_verdicts(3, EQUAL, family="contrast") > 0.2


def test_one_variance_decides_with_fewer_seeds() -> None:
    rng = np.random.default_rng(7)
    families = 0.035 + 0.01 * rng.normal(size=(200, CELLS, 3))
    decided = {
        pooled: sum(
            one.verdict == SUPPORTED
            for family in families.tolist()
            for one in judge(claim(), [cell(values) for values in family], alpha=0.05, pooled=pooled).cells
        )
        for pooled in (False, True)
    }
    assert decided[True] > 2 * decided[False]
