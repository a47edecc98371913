"""Names, hyper-parameters and schedules: what Snakemake reads while it builds the DAG, so without torch."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import pytest

from mpadam.optim.names import (
    OptimizerName,
    check_hyperparameters,
    hyperparameters_of,
    optimizer_names,
    parse_optimizer_name,
)
from mpadam.optim.schedules import factor


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adamw", OptimizerName("adamw", None, "full", "nearest")),
        ("adamw-sr", OptimizerName("adamw", None, "full", "stochastic")),
        ("adamw-kahan", OptimizerName("adamw", None, "full", "kahan")),
        ("adamw-eco", OptimizerName("adamw", None, "full", "eco")),
        ("adamw-eco-sr", OptimizerName("adamw", None, "full", "eco_stochastic")),
        ("m-plus-adam", OptimizerName("m-plus-adam", "normalized_rho", "full", "nearest")),
        ("m-plus-adam-relative", OptimizerName("m-plus-adam", "relative", "full", "nearest")),
        ("m-plus-adam-rho-tensor-sr", OptimizerName("m-plus-adam", "normalized_rho_tensor", "full", "stochastic")),
        ("m-plus-adam-unnormalized", OptimizerName("m-plus-adam", "unnormalized_rho", "full", "nearest")),
        ("m-plus-adam-apollo-e-kahan", OptimizerName("m-plus-adam", "normalized_rho", "apollo_e", "kahan")),
        ("additive-twin-sr", OptimizerName("additive-twin", None, "full", "stochastic")),
        ("madam", OptimizerName("madam", "relative", "full", "nearest")),
    ],
)
def test_a_name_says_rule_form_and_write_back(name: str, expected: OptimizerName) -> None:
    assert parse_optimizer_name(name) == expected


def test_names_are_composed_and_read_back() -> None:
    names = optimizer_names()
    assert len(set(names)) == len(names)
    assert [str(parse_optimizer_name(name)) for name in names] == list(names)
    # 4 forms of 2 rules and 2 rules without, Apollo-E for the 3 forms with v_e, each with 3 write-backs; two ECOs
    assert len(names) == 3 * (2 * (4 + 3) + 2) + 2


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("m-plus-adm", "m-plus-adam"),
        ("adaw-sr", "adamw-sr"),
        ("adamw_kahan", "adamw-kahan"),
        ("adamw-kahan-sr", "adamw-kahan"),
        ("m-plus-adam-sr-relative", "m-plus-adam-relative"),
        ("M-Plus-Adam", "m-plus-adam"),
        ("adamw-", "adamw"),
        ("m-plus-adamrelative", "m-plus-adam-relative"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_one(name: str, suggestion: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not known; did you mean '{suggestion}'"):
        parse_optimizer_name(name)


@pytest.mark.parametrize("name", ["", None, 3, True, "sgd"])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="is not known"):
        parse_optimizer_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["adamw-apollo-e", "additive-twin-apollo-e-sr", "m-plus-adam-unnormalized-apollo-e"])
def test_apollo_needs_a_v_e_to_compress(name: str) -> None:
    with pytest.raises(ValueError, match="compresses v_e"):
        parse_optimizer_name(name)


@pytest.mark.parametrize(
    "name", ["m-plus-adam-eco", "m-plus-adam-relative-eco-sr", "additive-twin-eco", "madam-eco-sr"]
)
def test_eco_needs_a_rule_with_a_single_additive_branch(name: str) -> None:
    with pytest.raises(ValueError, match=f"optimizer '{name}': ECO returns a rounding error through the first moment"):
        parse_optimizer_name(name)


def test_each_rule_takes_its_own_hyperparameters() -> None:
    assert list(hyperparameters_of("adamw")) == ["lr", "beta1", "beta2", "eps", "weight_decay"]
    assert "tau" not in hyperparameters_of("m-plus-adam-relative")
    assert {"lr_mult", "weight_decay_mult", "tau", "max_relative_step"} < hyperparameters_of("m-plus-adam").keys()
    assert {"apollo_rank", "apollo_refresh"} < hyperparameters_of("m-plus-adam-apollo-e").keys()
    assert "lr_mult" not in hyperparameters_of("madam")


def test_schedules_belong_to_branches() -> None:
    """Madam's only rate, though called lr, follows the multiplicative schedule."""
    moved = {
        name: {h.name: h.schedule for h in hyperparameters_of(name).values() if h.schedule}
        for name in ("adamw", "madam", "m-plus-adam", "additive-twin")
    }
    both = {"lr": "additive", "lr_mult": "multiplicative"}
    assert moved == {
        "adamw": {"lr": "additive"},
        "madam": {"lr": "multiplicative"},
        "m-plus-adam": both,
        "additive-twin": both,
    }


def test_defaults_are_the_reference_settings() -> None:
    assert check_hyperparameters("m-plus-adam", {}) == {
        "lr": 8e-5,
        "lr_mult": 4e-3,
        "beta1": 0.87,
        "beta2": 0.98,
        "eps": 1e-20,
        "weight_decay": 0.1,
        "weight_decay_mult": 0.01,
        "tau": 1e-8,
        "max_relative_step": 0.75,
        "block_scale_exponent": 0.0,
    }


def test_what_is_given_is_taken_and_none_is_a_value_where_it_may_be() -> None:
    checked = check_hyperparameters("adamw", {"beta1": 0.9, "beta2": 0.95, "lr": 1})
    assert (checked["beta1"], checked["beta2"], checked["lr"]) == (0.9, 0.95, 1.0)
    assert check_hyperparameters("m-plus-adam", {"max_relative_step": None})["max_relative_step"] is None


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("adamw", {"lr_mul": 1e-3}, "takes no hyper-parameter 'lr_mul'"),
        ("m-plus-adam", {"lr_mul": 1e-3}, "did you mean 'lr_mult'"),
        ("adamw", {"lr_mult": 1e-3}, "It takes lr, beta1"),
        ("adamw", {"lr": "8e-5"}, r"lr = '8e-5': give a number in \[0, inf\)"),
        ("adamw", {"lr": -1e-3}, "lr = -0.001"),
        ("adamw", {"lr": math.inf}, "lr = inf"),
        ("adamw", {"lr": math.nan}, "lr = nan"),
        ("adamw", {"lr": True}, "lr = True"),
        ("adamw", {"lr": None}, "lr = None"),
        ("adamw", {"beta2": 1.0}, r"beta2 = 1.0: give a number in \[0, 1\)"),
        ("adamw", {"eps": 0.0}, "eps = 0.0"),
        ("adamw", {"betas": [0.9, 0.95]}, "did you mean 'beta"),
        ("adamw-eco", {"beta1": 0.0}, r"beta1 = 0.0: give a number in \(0, 1\)"),
        ("m-plus-adam", {"tau": 0.0}, r"tau = 0.0: give a number in \(0, inf\)"),
        ("m-plus-adam", {"max_relative_step": 1.5}, r"\(0, 1\] or None"),
        ("m-plus-adam-apollo-e", {"apollo_rank": 2.5}, "whole"),
        ("m-plus-adam-apollo-e", {"apollo_refresh": 0}, "apollo_refresh = 0"),
        ("m-plus-adam", {"apollo_rank": 4}, "takes no hyper-parameter 'apollo_rank'"),
    ],
)
def test_bad_values_name_key_value_and_remedy(name: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_hyperparameters(name, values)


def test_schedules_follow_their_formulas() -> None:
    """Against the formulas written out, T = 10, W = 2, minimum 0.1, at p = (t - 2) / 8."""
    for t in range(3, 11):
        p = (t - 2) / 8
        q = math.log(1 + 3 * p) / math.log(4)
        shapes = {
            "linear": 1 - p,
            "cosine": (1 + math.cos(math.pi * p)) / 2,
            "logcosine": (1 + math.cos(math.pi * q)) / 2,
            "constant": 1.0,
        }
        for kind, shape in shapes.items():
            got = factor(t, kind=kind, total_steps=10, warmup_steps=2, min_ratio=0.1)
            assert got == pytest.approx(0.1 + 0.9 * shape, rel=1e-14), (kind, t)


@pytest.mark.parametrize("kind", ["linear", "cosine", "logcosine", "constant"])
def test_schedules_warm_up_peak_and_end(kind: str) -> None:
    rates = [factor(t, kind=kind, total_steps=10, warmup_steps=4, min_ratio=0.25) for t in range(1, 15)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a >= b for a, b in pairwise(rates[3:]))
    end = 1.0 if kind == "constant" else 0.25
    assert rates[9:] == [end] * 5  # at T, and after it
    assert factor(1, kind=kind, total_steps=1, warmup_steps=0, min_ratio=0.25) == end
    assert factor(10, kind=kind, total_steps=10, warmup_steps=10) == 1.0  # nothing but warm-up


def test_logcosine_falls_earlier_with_alpha_and_nears_a_cosine() -> None:
    at = {alpha: factor(6, kind="logcosine", total_steps=10, alpha=alpha) for alpha in (1e-9, 1.0, 3.0, 9.0)}
    assert at[9.0] < at[3.0] < at[1.0] < at[1e-9]
    assert at[1e-9] == pytest.approx(factor(6, kind="cosine", total_steps=10), abs=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "lin"}, "schedule = 'lin'"),
        ({"t": 0}, "counted from 1"),
        ({"warmup_steps": 11}, "warm-up <= total"),
        ({"total_steps": 0}, "warm-up <= total"),
        ({"min_ratio": -0.1}, "min_ratio = -0.1"),
        ({"alpha": 0.0}, "alpha = 0.0"),
    ],
)
def test_bad_schedules_are_refused(change: dict[str, object], message: str) -> None:
    good = {"t": 1, "kind": "linear", "total_steps": 10, "warmup_steps": 0}
    with pytest.raises(ValueError, match=message):
        factor(**{**good, **change})  # type: ignore[arg-type]


def test_names_and_the_package_import_no_torch() -> None:
    code = """
import sys
import mpadam, mpadam.optim, mpadam.optim.names, mpadam.optim.names, mpadam.optim.schedules
assert mpadam.__version__ and "MPlusAdam" in dir(mpadam)
assert "torch" not in sys.modules and "numpy" not in sys.modules, "torch came along"
from mpadam import AdamW, Madam, MPlusAdam
assert "torch" in sys.modules and MPlusAdam.__name__ == "MPlusAdam"
try:
    mpadam.Adamw
except AttributeError as error:
    assert "Adamw" in str(error)
else:
    raise AssertionError("a name that is not there was found")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
