"""Checkpoints and parameters that no longer fit the optimizer are refused in a line, or named in a warning."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR

from mpadam import AdamW, MPlusAdam
from mpadam.optim.options import rates_at


def parameters(names: str) -> dict[str, nn.Parameter]:
    return {n: nn.Parameter(torch.full((4, 6), 0.5)) for n in names}


OPTIONS = sorted(MPlusAdam(parameters("a").items()).defaults.keys() | {"_base_lr", "role"})


@pytest.mark.parametrize("key", OPTIONS)
def test_n1_a_checkpoint_that_lacks_an_option_is_refused_and_nothing_changes(key: str) -> None:
    """Such a checkpoint took another default without a word, or ended in a KeyError after it was half loaded."""
    made = [MPlusAdam([{"params": [p], "role": "head"}], second_moment="apollo_e") for p in parameters("ab").values()]
    saved = made[0].state_dict()
    value = saved["param_groups"][0].pop(key)
    state, before = made[1].state, copy.deepcopy(made[1].state_dict())
    with pytest.raises(ValueError, match=rf"the checkpoint (lacks {key}\b|has {key} = None)"):
        made[1].load_state_dict(saved)
    assert made[1].state is state
    assert str(made[1].state_dict()) == str(before)
    saved["param_groups"][0][key] = value
    made[1].load_state_dict(saved)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({}, "lacks 'state', 'param_groups'"),
        ({"param_groups": []}, "lacks 'state': "),
        ({"state": {}}, "lacks 'param_groups': give what optimizer.state_dict"),
        ({"state": {}, "param_groups": [{"lr": 1e-3}]}, "lacks 'params' in group 0"),
    ],
)
def test_n1_what_is_no_checkpoint_is_refused_in_a_line(saved: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MPlusAdam(parameters("a").items()).load_state_dict(saved)


def test_n1_names_that_no_longer_fit_their_group_are_refused() -> None:
    """They were ignored, and the state of b went to the first parameter, whatever its name."""
    first, second = (MPlusAdam(parameters(names).items()) for names in ("abc", "cb"))
    group = first.param_groups[0]
    whole = first.state_dict()
    del first.state[group["params"].pop(0)]
    with pytest.raises(ValueError, match="param_names in group 0 of the optimizer holds 3 names for 2 parameters"):
        first.state_dict()
    with pytest.raises(ValueError, match="group 0 of the optimizer holds 3 names"):
        first.load_state_dict(second.state_dict())
    whole["param_groups"][0]["params"].pop(0)
    with pytest.raises(ValueError, match="param_names in group 0 of the checkpoint holds 3 names for 2 parameters"):
        second.load_state_dict(whole)
    group["param_names"].pop(0)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["param_names"] == ["c", "b"]


# -- parameters -------------------------------------------------------------------------------------------------------


def test_a_step_without_any_gradient_is_named_once() -> None:
    """With load_state_dict(assign=True) the model gets other parameters, and nothing moved, without a word."""
    model = nn.Linear(4, 4)
    optimizer = MPlusAdam(model.parameters())
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    model(torch.ones(2, 4)).sum().backward()
    with pytest.warns(UserWarning, match=r"no parameter of the optimizer has a gradient.*assign=True") as named:
        optimizer.step()
    assert named[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        optimizer.step()
        some = MPlusAdam([*model.parameters(), nn.Parameter(torch.ones(2))])
        some.step()  # one without a gradient is no reason


def test_a_gradient_on_the_meta_device_is_refused() -> None:
    p = nn.Parameter(torch.ones(4, 6, device="meta"))
    optimizer = MPlusAdam([p])
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match=r"a parameter of shape \(4, 6\) is on the meta device and has no values"):
        optimizer.step()


@pytest.mark.parametrize("first", ["meta", "cpu"])
def test_a_state_is_not_moved_from_or_to_the_meta_device(first: str) -> None:
    """As `to_empty` does with parameters that keep their identity: a NotImplementedError, or a state that is lost."""
    p = nn.Parameter(torch.ones(4, 6, device=first))
    optimizer = MPlusAdam([p])
    other = nn.Parameter(torch.ones(4, 6, device="cpu" if first == "meta" else "meta"))
    torch.utils.swap_tensors(p, other)
    with pytest.raises(ValueError, match=rf"the state of a parameter of shape \(4, 6\) is on {first} and the"):
        optimizer.reload_weights()
    assert {v.device.type for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)} == {first}


def test_an_inference_tensor_is_refused() -> None:
    p = nn.Parameter(torch.ones(4, 6))
    optimizer = MPlusAdam([p])
    with torch.inference_mode():
        other = nn.Parameter(torch.ones(4, 6))
    torch.utils.swap_tensors(p, other)
    p.grad = torch.ones(4, 6)
    with pytest.raises(ValueError, match=r"a parameter of shape \(4, 6\) is an inference tensor.*torch.no_grad"):
        optimizer.step()


def grown(optimizer: MPlusAdam, p: nn.Parameter) -> nn.Parameter:
    """Densification: rows are added to a parameter and to its state, which moves to it."""
    new = nn.Parameter(torch.cat((p.detach(), p.detach()[:3])))
    state = optimizer.state.pop(p)
    optimizer.state[new] = {k: torch.cat((v, v[:3])) if isinstance(v, torch.Tensor) else v for k, v in state.items()}
    optimizer.param_groups[0]["params"] = [new]
    return new


def steps(optimizer: MPlusAdam, *params: nn.Parameter, count: int = 3) -> None:
    for t in range(count):
        for p in params:
            p.grad = torch.full_like(p, 0.3 + t)
        optimizer.step()


@pytest.mark.parametrize("same_dict", [True, False])
def test_n3_a_kahan_state_grows_with_its_parameter(same_dict: bool) -> None:
    """It ended in a RuntimeError: two checksums of other lengths were compared."""
    p = nn.Parameter(torch.linspace(0.5, 1.0, 1200).view(12, 100).bfloat16())
    optimizer = MPlusAdam([p], write_back="kahan", lr=1e-3)
    steps(optimizer, p)
    state = optimizer.state[p]
    new = grown(optimizer, p)
    if same_dict:
        state.update(optimizer.state[new])
        optimizer.state[new] = state
    steps(optimizer, new)
    assert torch.equal(new[:3], new[12:])
    with torch.no_grad():
        new.mul_(2)
    new.grad = torch.ones_like(new)
    with pytest.raises(ValueError, match="was written from outside"):
        optimizer.step()


@pytest.mark.parametrize("with_values", [True, False])
def test_n3_two_parameters_exchange_values_and_kahan_states(with_values: bool) -> None:
    """It was refused as a write from outside; without the values it still is one."""
    a, b = (nn.Parameter(torch.linspace(x, x + 1, 24).view(4, 6).bfloat16()) for x in (0.5, 2.0))
    optimizer = MPlusAdam([a, b], write_back="kahan", lr=1e-3)
    steps(optimizer, a, b)
    optimizer.state[a], optimizer.state[b] = optimizer.state[b], optimizer.state[a]
    if with_values:
        with torch.no_grad():
            was = a.clone()
            a.copy_(b)
            b.copy_(was)
        steps(optimizer, a, b)
    else:
        with pytest.raises(ValueError, match="was written from outside"):
            steps(optimizer, a, b)


# -- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [1e-2, torch.tensor(1e-2)])
def test_n6_rounding_is_measured_from_the_rate_that_a_scheduler_began_with(lr: Any) -> None:
    p = nn.Parameter(torch.ones(4, 6))
    optimizer = AdamW([p], lr=1e-5)
    group = optimizer.param_groups[0]
    group["lr"], group["initial_lr"] = lr, 1e-2
    scheduler = LinearLR(optimizer, 1 / 3, 0.0, 10)
    for _ in range(12):
        steps(optimizer, p, count=1)
        scheduler.step()
    assert abs(float(group["lr"])) < 1e-8


@pytest.mark.parametrize("undershot", [-1.8e-15, torch.tensor(-1.2e-7)])
def test_n6_a_multiplicative_rate_below_zero_by_rounding_is_zero(undershot: Any) -> None:
    optimizer = MPlusAdam([p := nn.Parameter(torch.ones(4, 6))], lr=0.0, lr_mult=1.0)
    optimizer.param_groups[0]["lr_mult"] = undershot
    steps(optimizer, p, count=1)
    assert rates_at(optimizer.param_groups[0], 1).multiplicative == 0.0
    assert torch.equal(p, torch.ones(4, 6))
    optimizer.param_groups[0]["lr_mult"] = torch.tensor(-1e-3)
    with pytest.raises(ValueError, match="lr_mult = "):
        steps(optimizer, p, count=1)


@pytest.mark.parametrize("nothing", [None, [], "optimizer.pt"])
def test_what_is_no_checkpoint_is_refused_in_a_line(nothing: Any) -> None:
    with pytest.raises(ValueError, match=r"load_state_dict got a \w+, not a dict: give what optimizer.state_dict"):
        AdamW([nn.Parameter(torch.ones(2))]).load_state_dict(nothing)


def test_n6_groups_of_a_warm_up_build_another_optimizer() -> None:
    """`lr` is 0 at first there, and a tied lr_mult follows lr / initial_lr."""
    first = MPlusAdam([nn.Parameter(torch.ones(4, 6))], lr=1e-3, tie_lr_mult=True)
    LambdaLR(first, lambda epoch: epoch / 10)
    assert first.param_groups[0]["lr"] == 0.0
    second = MPlusAdam(first.param_groups)
    second.param_groups[0]["lr"] = 5e-4
    assert rates_at(second.param_groups[0], 1).multiplicative == pytest.approx(2e-3)
    with pytest.raises(ValueError, match="tie_lr_mult = True with lr = 0"):
        MPlusAdam([nn.Parameter(torch.ones(2))], lr=0.0, tie_lr_mult=True)
