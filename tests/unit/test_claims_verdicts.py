"""How numbers become verdicts: thresholds, directions, premises, and everything that forbids a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from claims_samples import CONTRAST, cell, claim

from mpadam.claims.samples import ClaimCell
from mpadam.claims.verdicts import judge

CLEAR = (0.020, 0.021, 0.019, 0.022, 0.018)  # far above 0.005, by a t of 20
LOST = tuple(-value for value in CLEAR)
UNSURE = (0.02, -0.02, 0.03, -0.01, 0.01)
NONE = (0.001, 0.0, -0.001, 0.001, 0.0)  # a gain that is shown to be too small to matter


def alone(sample: ClaimCell, **about: Any) -> ClaimCell:
    """The only cell of a claim, judged."""
    (found,) = judge(claim(**about), [sample], alpha=0.05).cells
    return found


@pytest.mark.parametrize(
    ("direction", "values", "verdict"),
    [
        ("above", CLEAR, "supported"),
        ("above", LOST, "contradicted"),
        ("above", NONE, "contradicted"),
        ("above", UNSURE, "inconclusive"),
        ("below", CLEAR, "contradicted"),
        ("below", LOST, "supported"),
        ("within", NONE, "supported"),
        ("within", CLEAR, "contradicted"),
        ("within", LOST, "contradicted"),
        ("within", UNSURE, "inconclusive"),
        ("outside", CLEAR, "supported"),
        ("outside", LOST, "supported"),
        ("outside", NONE, "contradicted"),
    ],
)
def test_a_cell_is_decided_by_the_side_of_the_threshold(
    direction: str, values: tuple[float, ...], verdict: str
) -> None:
    assert alone(cell(values), direction=direction).verdict == verdict


@pytest.mark.parametrize(
    ("counted", "verdict", "reason"),
    [
        ((20, 20), "inconclusive", "20 of 20 probes; 368 such probes would decide"),
        ((368, 368), "supported", "shown to be above 0.99"),
        ((367, 367), "inconclusive", "367 of 367 probes; 368 such probes would decide"),
        ((19, 20), "inconclusive", "19 of 20 probes"),
        ((15, 20), "contradicted", "shown to be below 0.99"),
    ],
)
def test_a_share_of_probes_is_held_against_how_many_there_were(
    counted: tuple[int, int], verdict: str, reason: str
) -> None:
    """Five seeds that say 1.0 have no spread, and yet twenty probes do not show a share above 0.99."""
    metric = {"kind": "probe", "quantity": "loss_fell", "contrasts": [{**CONTRAST, "terms": CONTRAST["terms"][:1]}]}
    found = alone(replace(cell((1.0,) * 5), counted=counted), threshold=0.99, metric=metric)
    assert (found.verdict, found.reason) == (verdict, reason)
    if counted == (20, 20):
        assert found.interval == pytest.approx((0.8316, 1.0), abs=1e-4)  # Clopper and Pearson's table


def test_a_margin_that_may_be_lost_is_a_negative_threshold() -> None:
    assert alone(cell(NONE), threshold=-0.005).verdict == "supported"
    assert alone(cell(LOST), threshold=-0.005).verdict == "contradicted"


def test_an_open_cell_says_how_many_seeds_would_decide() -> None:
    found = alone(cell((0.012, 0.0, 0.02, 0.004, 0.016)))
    assert found.verdict == "inconclusive"
    assert found.seeds_needed is not None
    assert found.seeds_needed > 5
    assert found.reason == f"about {found.seeds_needed} seeds would decide"
    far = alone(cell((0.0051, 0.2, -0.19, 0.005, 0.006)))
    assert (far.seeds_needed, far.reason) == (None, "more than 1000 seeds would be needed")


def test_n_1_and_n_2_never_give_a_verdict() -> None:
    for n in (1, 2):
        found = alone(cell(CLEAR[:n]))
        assert (found.verdict, found.reason, found.p) == ("inconclusive", f"n = {n} < 3 seeds", None)
        assert (found.interval is None) == (n == 1)
        pooled = judge(claim(), [cell(CLEAR[:n]), cell(CLEAR)], alpha=0.05, pooled=True).cells[0]
        assert pooled.verdict == "inconclusive"
    assert alone(cell(CLEAR[:3])).verdict == "supported"


def test_missing_seeds_forbid_a_verdict_however_clear_the_rest_is() -> None:
    found = alone(cell(CLEAR[:4], asked=(0, 1, 2, 3, 4), missing=(4,)))
    assert (found.verdict, found.reason) == ("inconclusive", "4 of 5 seeds are in; no verdict before all are")
    assert found.interval is not None


def test_a_cell_without_a_pair_is_not_run() -> None:
    found = alone(cell((), asked=(0, 1, 2), missing=(0, 1, 2)))
    assert (found.verdict, found.reason, found.mean) == ("not run", "0 of 3 seeds are in", None)


def test_not_bracketed_forbids_a_verdict_for_either_of_the_two() -> None:
    found = alone(cell(CLEAR, edges=("adamw: lr",)))
    assert found.verdict == "not bracketed"
    assert found.reason == "best rate without a worse neighbour on both sides: adamw: lr"


def test_both_sides_diverged_is_no_comparison() -> None:
    found = alone(cell((0.02, 0.021, 0.019, 0.0, 0.02), tied=(3,)))
    assert (found.verdict, found.reason) == ("inconclusive", "both sides diverged at seed 3")


def test_a_premise_that_is_not_shown_leaves_nothing_to_say() -> None:
    shown, open_, absent = (dict(enumerate(values)) for values in (CLEAR, UNSURE, LOST))
    assert alone(cell(CLEAR, premise=shown)).verdict == "supported"
    assert alone(cell(LOST, premise=shown)).verdict == "contradicted"
    for premise, numbers in ((open_, "+0.0060 (-0.0197 to +0.0317)"), (absent, "-0.0200 (-0.0220 to -0.0180)")):
        found = alone(cell(CLEAR, premise=premise, needs="the gap"))
        assert (found.verdict, found.reason) == ("not testable here", f"the gap is not shown: {numbers}")
        assert found.p is None


def test_b2_a_premise_has_to_hold_for_all_cells_together_as_well() -> None:
    """Shown at 5% for its cell alone, and not where it is one of ten."""
    premise = dict(enumerate((0.01, 0.03, 0.02, 0.005, 0.04)))  # p = 0.03
    assert alone(cell(CLEAR, premise=premise, needs="the gap")).verdict == "supported"
    first = judge(claim(), [cell(CLEAR, premise=premise, needs="the gap"), *[IDLE] * 9], alpha=0.05).cells[0]
    told = "the gap is shown for this cell, but not for all cells together"
    assert (first.verdict, first.reason) == ("inconclusive", told)


def test_b2_cells_outside_of_a_claim_are_counted_apart() -> None:
    """Where the premise is not shown the claim says nothing; unequal treatment is a fault of the study."""
    outside = cell(CLEAR, premise=dict(enumerate(LOST)), needs="the gap")
    unequal = cell(CLEAR, untestable=("a uses the rates of b",))
    found = judge(claim(), [YES, outside], alpha=0.05)
    assert (found.verdict, found.reason) == ("supported", "2 cells: 1 supported, 1 not testable here")
    assert judge(claim(), [NO, outside], alpha=0.05).verdict == "contradicted"
    assert judge(claim(), [OPEN, outside], alpha=0.05).verdict == "inconclusive"
    for cells in ([outside], [outside, IDLE], [unequal], [YES, unequal], [outside, unequal]):
        assert judge(claim(), cells, alpha=0.05).verdict == "not testable here", cells
    assert judge(claim(), [outside, IDLE, YES], alpha=0.05).verdict == "inconclusive"


def test_b4_what_the_design_forbids_has_no_verdict_however_clear_it_is() -> None:
    for exact in (False, True):
        found = alone(cell(CLEAR[:1] if exact else CLEAR, untestable=("a uses the rates of b",), exact=exact))
        assert (found.verdict, found.reason, found.p) == ("not testable here", "a uses the rates of b", None)


@pytest.mark.parametrize(
    ("values", "direction", "threshold", "told"),
    [
        (CLEAR, "above", 0.005, "shown to be above +0.5%"),
        (LOST, "above", 0.005, "shown to be below +0.5%; below 0"),
        (NONE, "above", 0.005, "shown to be below +0.5%; not shown to differ from 0"),
        (NONE, "above", -0.005, "shown to be above -0.5%; not shown to differ from 0"),
        ((0.0011, 0.001, 0.0012, 0.0009, 0.001), "above", 0.005, "shown to be below +0.5%; above 0"),
        (LOST, "above", -0.005, "shown to be below -0.5%"),
        (CLEAR, "above", 0.0, "shown to be above 0"),
        (NONE, "within", 0.005, "shown to lie within ±0.5%"),
        (LOST, "outside", 0.005, "shown to lie outside ±0.5%"),
    ],
)
def test_b5_a_verdict_says_what_its_interval_shows(
    values: tuple[float, ...], direction: str, threshold: float, told: str
) -> None:
    """A gain that is shown to be below half a percent is not a loss that is shown."""
    assert alone(cell(values), direction=direction, threshold=threshold).reason == told


def test_what_is_computed_without_chance_needs_no_seeds() -> None:
    assert alone(cell((0.01,), exact=True)).verdict == "supported"
    assert alone(cell((0.004,), exact=True)).verdict == "contradicted"
    assert alone(cell((), exact=True)).verdict == "not run"


def test_cells_that_are_not_tested_count_in_holms_correction() -> None:
    """p = 0.03 alone; with a missing cell next to it, twice that."""
    values = (0.0155, 0.0203, 0.025)
    first = alone(cell(values))
    assert first.p is not None
    assert 0.025 < first.p < 0.05
    assert first.verdict == "supported"
    paired = judge(claim(), [cell(values), cell(())], alpha=0.05).cells[0]
    assert paired.p == first.p
    assert paired.p_holm == pytest.approx(2 * first.p)
    assert paired.verdict == "inconclusive"
    assert paired.family_interval[1] - paired.family_interval[0] > first.family_interval[1] - first.family_interval[0]


def test_families_are_those_of_the_claim_or_of_its_contrasts() -> None:
    samples = [cell(CLEAR, contrast="a"), cell(CLEAR, contrast="b"), cell(UNSURE, contrast="a")]
    sizes = {
        family: [one.family_size for one in judge(claim(family=family), samples, alpha=0.05).cells]
        for family in ("claim", "contrast")
    }
    assert sizes == {"claim": [3, 3, 3], "contrast": [2, 1, 2]}
    order = [(one.contrast, one.values) for one in judge(claim(family="contrast"), samples, alpha=0.05).cells]
    assert order == [(one.contrast, one.values) for one in samples]


YES, NO, OPEN = cell(CLEAR), cell(LOST), cell(UNSURE)
EDGE, IDLE = cell(CLEAR, edges=("a: lr",)), cell((), asked=(0, 1, 2))


@pytest.mark.parametrize(
    ("samples", "every", "in_any"),
    [
        ([YES, YES], "supported", "supported"),
        ([NO, NO], "contradicted", "contradicted"),
        ([YES, NO, OPEN], "contradicted", "supported"),
        ([YES, OPEN], "inconclusive", "supported"),
        ([NO, OPEN], "contradicted", "inconclusive"),
        ([YES, EDGE], "not bracketed", "supported"),
        ([OPEN, EDGE], "inconclusive", "inconclusive"),
        ([YES, IDLE], "inconclusive", "supported"),
        ([NO, IDLE], "contradicted", "inconclusive"),
        ([IDLE, IDLE], "not run", "not run"),
        ([EDGE, IDLE], "not bracketed", "not bracketed"),
        ([], "not run", "not run"),
    ],
)
def test_how_cells_make_the_verdict_of_a_claim(samples: list[ClaimCell], every: str, in_any: str) -> None:
    assert judge(claim(holds="every"), samples, alpha=0.05).verdict == every
    assert judge(claim(holds="any"), samples, alpha=0.05).verdict == in_any


def test_the_reason_counts_cells_and_names_those_that_are_not_run() -> None:
    found = judge(claim(), [YES, NO, cell((), asked=(0,), where="there")], alpha=0.05)
    assert found.reason == "3 cells: 1 supported, 1 contradicted, 1 not run; not run: there (c)"
    assert judge(claim(), [], alpha=0.05).reason == "the study has no such runs or measurements"
