"""Options of parameter groups: whose they are, what they are stored as, which are refused, which may move later."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from mpadam import AdamW, AdditiveTwin, Madam, MPlusAdam
from mpadam.numerics import Fp8Blocks
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.groups import parameter_groups
from mpadam.optim.memory import bytes_per_parameter
from mpadam.optim.options import rates_at


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, 0.5, dtype=dtype))


def step(optimizer: LowPrecisionOptimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    optimizer.step()


# -- whose they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_a_list_of_groups_serves_any_number_of_optimizers(named: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    groups: list[dict[str, Any]] = (
        parameter_groups(model, weight_format="fp32") if named else [{"params": list(model.parameters()), "name": "x"}]
    )
    before = copy.copy([dict(group) for group in groups])
    for build, lr, decay in (
        (AdamW, 1e-3, 0.3),
        (Madam, 0.1, 0.02),
        (MPlusAdam, 5e-4, 0.05),
        (AdditiveTwin, 7e-4, 0.06),
    ):
        optimizer = build(groups, lr=lr, weight_decay=decay)
        assert all(a.keys() == b.keys() and all(a[k] is b[k] for k in a) for a, b in zip(before, groups, strict=True))
        for group in optimizer.param_groups:
            assert (group["rule"], group["lr"]) == (build.rule, lr)
        fresh = build(
            parameter_groups(model, weight_format="fp32") if named else [dict(before[0])], lr=lr, weight_decay=decay
        )
        assert [rates_at(g, 3) for g in optimizer.param_groups] == [rates_at(g, 3) for g in fresh.param_groups]


def test_lr_mult_is_tied_to_the_lr_of_its_own_construction() -> None:
    first = MPlusAdam([parameter(3)], lr=1e-3, tie_lr_mult=True)
    first.param_groups[0]["lr"] = 5e-4
    second = MPlusAdam(first.param_groups)
    assert rates_at(second.param_groups[0], 1).multiplicative == 4e-3
    other = MPlusAdam([{"params": [parameter(3)], "base_lr": 0.3}], lr=1e-3, tie_lr_mult=True)
    assert rates_at(other.param_groups[0], 1).multiplicative == 4e-3


@pytest.mark.parametrize(
    ("build", "option", "message"),
    [
        (AdamW, {"lr_mult": 0.5}, "lr_mult = 0.5 in parameter group 0: AdamW does not take it; leave it out"),
        (AdamW, {"second_moment": "full", "role": "head"}, r"second_moment = 'full' in parameter group 0 \('head'\)"),
        (AdamW, {"beta2": 0.1}, "beta2 = 0.1 .* It takes betas, eps"),
        (AdamW, {"weight_decay_mult": 5}, "weight_decay_mult = 5"),
        (AdamW, {"tau": 3}, "tau = 3"),
        (AdamW, {"rule": "madam"}, "rule = 'madam' in parameter group 0: the class says the rule"),
        (Madam, {"betas": (0.9, 0.5)}, "betas = .* Madam does not take it"),
        (AdditiveTwin, {"multiplicative_form": "relative"}, "multiplicative_form = 'relative'"),
    ],
)
def test_options_of_another_rule_are_refused(build: Any, option: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build([{"params": [parameter(3)], **option}])


def test_keys_of_others_may_stay() -> None:
    foreign = {"name": "x", "role": "y", "initial_lr": 0.1, "weight_decay_mult": 0.0, "base_lr": 3}
    step(AdamW([{"params": [("w", parameter(3))], **foreign}]))


# -- what they are stored as ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_group", [True, False])
def test_numbers_are_stored_as_they_were_checked(in_group: bool) -> None:
    given = {
        "max_relative_step": 1, "tau": 1, "apollo_rank": 4.0, "apollo_refresh": 200.0,
        "betas": [torch.tensor(0.5), 0], "second_moment": "apollo_e",
    }  # fmt: skip
    p = parameter(8, 8)
    optimizer = MPlusAdam([{"params": [p], **given}]) if in_group else MPlusAdam([p], **given)
    group = optimizer.param_groups[0]
    got = {key: (group[key], type(group[key])) for key in given if key not in ("betas", "second_moment")}
    assert got == {
        "max_relative_step": (1.0, float), "tau": (1.0, float), "apollo_rank": (4, int), "apollo_refresh": (200, int),
    }  # fmt: skip
    assert group["betas"] == (0.5, 0.0)
    step(optimizer)
    assert p.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": torch.tensor([1e-3, 1e-3])}, r"lr = a tensor of shape \(2,\): give one number"),
        ({"compile": "no"}, "compile = 'no': give True, False or 'auto'"),
        ({"tie_lr_mult": 1}, "tie_lr_mult = 1: give True, False or None"),
        ({"apollo_rank": -1}, "apollo_rank = -1"),
        ({"seed": True}, "seed = True"),
    ],
)
def test_bad_options_say_what_to_give(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MPlusAdam([parameter(3)], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 2.5}, "block_size=2.5"),
        ({"block_size": 0}, "block_size=0"),
        ({"block_rows": 0}, r"block_rows=0: give a whole number from 1"),
        ({"block_rows": 0.5}, "block_rows="),
    ],
)
def test_blocks_are_whole(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fp8Blocks(**options)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"max_relative_step": "1"}, "max_relative_step = '1'"),
        ({"betas": (0.9, 1.0)}, "beta2 = 1.0"),
        ({"multiplicative_form": "relative"}, "multiplicative_form = 'relative': it was 'normalized_rho'"),
        ({"write_back": "kahan"}, "build another optimizer"),
        ({"apollo_rank": 2}, "apollo_rank = 2"),
        ({"seed": 4}, "seed = 4: it was 0"),
    ],
)
def test_a_bad_value_that_is_set_later_half_applies_no_step(later: dict, message: str) -> None:
    p, q = parameter(3), parameter(3)
    optimizer = MPlusAdam([{"params": [p]}, {"params": [q]}])
    optimizer.param_groups[1].update(later)
    with pytest.raises(ValueError, match=message):
        step(optimizer)
    assert torch.equal(p, torch.full((3,), 0.5))
    assert optimizer.state[p]["step"] == 0


def test_a_good_value_that_is_set_later_counts() -> None:
    p, q = parameter(3), parameter(3)
    moved, oracle = MPlusAdam([p]), MPlusAdam([q], max_relative_step=1.0, lr_mult=2.0)
    moved.param_groups[0].update(max_relative_step=1, lr_mult=2)
    step(moved)
    step(oracle)
    assert torch.equal(p, q)


def test_no_format_and_the_name_of_the_own_dtype_are_one() -> None:
    params = [parameter(3, dtype=torch.bfloat16) for _ in range(2)]
    told, silent = AdamW([params[0]], weight_format="bf16", state_dtype="bf16", carry_dtype="bf16"), AdamW([params[1]])
    step(told)
    silent.load_state_dict(told.state_dict())
    told.load_state_dict(silent.state_dict())
    assert torch.equal(silent.state[params[1]]["m"], told.state[params[0]]["m"])


# -- frozen parameters ------------------------------------------------------------------------------------------------


def test_frozen_parameters_are_untouched_until_they_have_a_gradient() -> None:
    """Neither state nor quantisation; and then they are what they would have been, with the same rounding bits."""
    values = torch.linspace(-1, 1, 600).reshape(2, 300).to(torch.bfloat16)
    ends = []
    for frozen in (True, False):
        p, q = nn.Parameter(values.clone(), requires_grad=not frozen), nn.Parameter(values.clone())
        optimizer = MPlusAdam([p, q], weight_format="fp8_e4m3", write_back="stochastic")
        if frozen:
            assert torch.equal(p, values)
            assert list(optimizer.state) == [q]
            with pytest.raises(ValueError, match="a frozen one"):
                optimizer.store_of(p)
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            assert bytes_per_parameter(optimizer).weight == pytest.approx((2 * 600 + 600 + 4) / 1200)
            p.requires_grad_(True)
        step(optimizer)
        ends.append((p.detach(), q.detach(), optimizer.state[p]["id"], optimizer.state[q]["id"]))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][:2], ends[1][:2], strict=True))
    assert ends[0][2:] == ends[1][2:] == (0, 1)


def test_a_checkpoint_with_other_frozen_parameters_is_refused() -> None:
    p, q = parameter(3), parameter(3)
    q.requires_grad_(False)
    with pytest.raises(ValueError, match="freeze the same ones first"):
        AdamW([q]).load_state_dict(AdamW([p]).state_dict())


def test_bytes_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="without a single element"):
        bytes_per_parameter(AdamW([parameter(0)]))
