"""Issue 17, B4: what "bracketed" means, which trial comes next, and searches with one factor."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
from analysis_fakes import study_content

from mpadam.study.grid import tuning_keys
from mpadam.study.load import ConfigError, parse_study
from mpadam.study.spec import tuning_identity
from mpadam.study.tuning import next_trial, select, with_further

Loss = Callable[..., float | None]


def trial(values: dict[str, float], loss: float | None) -> dict[str, Any]:
    return {"values": values, "status": "diverged" if loss is None else "completed", "val_loss": loss, "hash": "0"}


def line(*losses: float | None) -> list[dict[str, Any]]:
    """Trials of lr 1, 2, 4, ..."""
    return [trial({"lr": 2.0**k}, loss) for k, loss in enumerate(losses)]


def grid(loss: Loss, lr: Sequence[float] = (1, 2, 4), lr_mult: Sequence[float] = (1, 2, 4, 8)) -> list[dict[str, Any]]:
    return [trial({"lr": a, "lr_mult": m}, loss(lr=a, lr_mult=m)) for a, m in product(lr, lr_mult)]


def bowl(**middle: float) -> Loss:
    """Least at `middle`, rising with the octaves from there."""
    return lambda **values: 3.0 + sum(abs(math.log2(values[key] / at)) for key, at in middle.items())


def extended(trials: list[dict[str, Any]], allowance: int, loss: Loss) -> list[dict[str, Any]]:
    return with_further(trials, allowance, lambda number, values: trial(values, loss(**values)))


# --- bracketed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((5, 4, 5), True),
        ((5, 4, None), True),  # a diverged neighbour is worse
        ((5, 4, math.nan), True),
        ((5, 4, 4), False),  # as good: nothing says that it does not go on
        ((4, 5, 6), False),
        ((6, 5, 4), False),
        ((None, None, None), False),
        ((4,), False),
    ],
)
def test_a_value_is_bracketed_by_worse_neighbours_on_both_sides(losses: tuple[float | None, ...], expected: bool):
    assert select(line(*losses))["bracketed"] == {"lr": expected}


def test_values_tried_elsewhere_are_no_neighbours():
    """Smaller and larger values of lr_mult were tried, but not with the best trial's lr."""
    cross = [((1, 1), 5.0), ((1, 4), 5.0), ((2, 2), 4.0), ((4, 2), 5.0), ((1, 2), 5.0)]
    trials = [trial({"lr": a, "lr_mult": m}, loss) for (a, m), loss in cross]
    assert select(trials)["bracketed"] == {"lr": True, "lr_mult": False}


# --- which trial comes next ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (line(5, 4, 5), None),
        (line(6, 5, 4), {"lr": 8}),
        (line(4, 5, 6), {"lr": 0.5}),
        (line(5, 4, 4), None),  # the first of two that are as good has both neighbours
        (line(None, 5, 4, None), None),
        (line(None, None), {"lr": 0.5}),
        (grid(bowl(lr=2, lr_mult=4)), None),
        (grid(bowl(lr=4, lr_mult=8)), {"lr": 8, "lr_mult": 8}),
        (grid(bowl(lr=2, lr_mult=1)), {"lr": 2, "lr_mult": 0.5}),
        (grid(lambda **values: None), {"lr": 0.5, "lr_mult": 0.5}),
    ],
)
def test_the_next_trial_is_the_neighbour_that_the_best_one_lacks(trials, expected):
    asked = next_trial(trials)
    assert (asked and asked[0]) == expected


def test_the_factor_is_that_of_the_two_values_nearest_to_the_end():
    trials = [trial({"lr": lr}, loss) for lr, loss in ((1e-3, 6), (3e-3, 5), (1e-2, 4))]
    assert next_trial(trials)[0] == {"lr": 0.0333333}
    assert next_trial(trials[::-1])[0] == {"lr": 0.0333333}  # in whatever order they are listed


def test_further_trials_fill_the_grid_around_a_best_one_beyond_the_corner():
    """The best moves past the corner; its neighbours inside take values that were tried elsewhere."""
    found = extended(grid(bowl(lr=8, lr_mult=8)), 10, bowl(lr=8, lr_mult=8))
    further = [tuple(t["values"].values()) for t in found if "why" in t]
    assert further == [(8, 8), (16, 8), (8, 4), (8, 16)]
    selected = select(found, 10)
    assert selected["values"] == {"lr": 8, "lr_mult": 8}
    assert selected["bracketed"] == {"lr": True, "lr_mult": True}
    assert selected["further"] == {"allowed": 10, "made": 4}
    assert selected["trials"][12]["why"] == "the best trial, number 11, had no neighbour with a larger lr"


@pytest.mark.parametrize("allowance", [0, 1, 3])
def test_no_more_than_the_allowance_is_made(allowance: int):
    found = extended(line(6, 5, 4), allowance, lambda lr: 4 - lr / 100)
    assert len(found) == 3 + allowance
    assert select(found, allowance)["bracketed"] == {"lr": False}


def test_without_an_allowance_the_selection_is_what_it_was():
    assert list(select(line(5, 4, 5))) == ["status", "best", "values", "bracketed", "trials"]


def test_a_tuning_that_diverged_goes_down_until_it_trains():
    found = extended(line(None, None), 6, lambda lr: None if lr > 0.3 else 4 + abs(math.log2(lr / 0.125)))
    assert [t["values"]["lr"] for t in found[2:]] == [0.5, 0.25, 0.125, 0.0625]
    assert select(found, 6)["bracketed"] == {"lr": True}


# --- searches with one factor ----------------------------------------------------------------------------------------


def study(trials: int, *, extend: int = 2, **searches: dict[str, list[float]]) -> dict[str, Any]:
    entries = {name.replace("_", "-"): {"search": search} for name, search in searches.items()}
    return study_content(optimizers=entries, tuning={"mode": "search", "trials": trials, "extend": extend})


EQUAL = {"lr": [1e-3, 2e-3, 4e-3, 8e-3]}


@pytest.mark.parametrize(
    "search",
    [
        {"lr": [1e-3, 2e-3], "lr_mult": [4e-3, 8e-3]},
        {"lr": [8e-3, 4e-3, 2e-3, 1e-3]},
        {"lr": [1e-3, 2e-3, 4e-3, 8.2e-3]},
    ],
)
def test_equal_searches_are_accepted(search: dict[str, list[float]]):
    parse_study(study(4, adamw=EQUAL, m_plus_adam=search))


@pytest.mark.parametrize(
    ("search", "told"),
    [
        (
            {"lr": [1e-3, 2e-3, 5e-3, 1e-2]},
            r"optimizers.m-plus-adam.search.lr: \[0.001, 0.002, 0.005, 0.01\] has not one",
        ),
        (
            {"lr": [1e-3, 3e-3, 9e-3, 2.7e-2]},
            "has the factor 3 between neighbouring values, optimizers.adamw.search.lr",
        ),
        (
            {"lr": EQUAL["lr"], "lr_mult": [4e-3]},
            r"search.lr_mult: \[0.004\] has not one factor .* lr_mult: \[0.001, 0",
        ),
        ({"lr": [1e-3, 2e-3], "lr_mult": [0, 4e-3]}, "search.lr_mult: .* has not one factor"),
        ({"lr": EQUAL["lr"], "lr_mult": [4e-3, 8e-3]}, "has 8 points, and .* lists tuning.trials = 4"),
        ({"lr": [1e-3, 2e-3], "beta1": [0.45, 0.9]}, "tuning.extend may try .*beta1"),
    ],
)
def test_unequal_searches_are_refused_where_tunings_extend(search: dict[str, list[float]], told: str):
    with pytest.raises(ConfigError, match=told) as error:
        parse_study(study(4, adamw=EQUAL, m_plus_adam=search))
    assert "\n" not in str(error.value)
    if len(search) == 1:
        parse_study(study(4, extend=0, adamw=EQUAL, m_plus_adam=search))


def test_the_allowance_is_part_of_a_tunings_identity_only_where_there_is_one():
    """So that nothing is asked for again where a study does not name it."""
    keys = {extend: parse_study(study(4, extend=extend, adamw=EQUAL)) for extend in (0, 2)}
    identities = {extend: tuning_identity(config, tuning_keys(config)[0]) for extend, config in keys.items()}
    assert "extend" not in identities[0]
    assert identities[2] == {**identities[0], "extend": 2}
