"""Defaults that are safe (issue 21, C): rates that do not move together or look swapped are named once, and steps of
large models are compiled without being asked for."""

from __future__ import annotations

import copy
import logging
import math
import re
import warnings
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

import mpadam
from mpadam import AdamW, AdditiveTwin, Madam, MPlusAdam, OptimizerWarning
from mpadam.optim import compiled
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.checks import SWAPPED_FROM
from mpadam.optim.names import check_hyperparameters
from mpadam.optim.registry import build_optimizer
from mpadam.study.config import StudyConfig
from mpadam.study.load import load_study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, math.prod(shape)).reshape(shape))


def step(optimizer: LowPrecisionOptimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    optimizer.step()


def said(do: Callable[[], object]) -> list[str]:
    """Our warnings while something is done."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        do()
    return [str(w.message) for w in caught if issubclass(w.category, OptimizerWarning)]


def halve(optimizer: LowPrecisionOptimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] /= 2


SCHEDULERS: dict[str, Callable[[LowPrecisionOptimizer], LRScheduler]] = {
    "linear": lambda o: LambdaLR(o, lambda epoch: 1 - epoch / 10),
    "warm-up": lambda o: LambdaLR(o, lambda epoch: (epoch + 1) / 10),
    "cosine": lambda o: CosineAnnealingLR(o, T_max=10),
    "one cycle": lambda o: OneCycleLR(o, max_lr=1e-3, total_steps=10),
}


# --- a rate that moves and one that does not -------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("build", [MPlusAdam, AdditiveTwin])
def test_c21_a_scheduler_that_moves_lr_alone_is_named_once(build: Any, scheduler: str) -> None:
    optimizer = build([parameter(3)], lr=1e-3, lr_mult=4e-3, betas=(0.9, 0.99))

    def train() -> None:
        schedule = SCHEDULERS[scheduler](optimizer)
        for _ in range(5):
            step(optimizer)
            schedule.step()

    (message,) = said(train)
    assert re.search(r"lr has moved from 0.001 to \S+, and lr_mult = 0.004 has not: .*tie_lr_mult=True", message)


@pytest.mark.parametrize(
    ("options", "mult"),
    [
        ({"tie_lr_mult": True}, 1.0),  # it follows
        ({"tie_lr_mult": False}, 1.0),  # it is meant to stay
        ({}, 0.5),  # it is moved as well
        ({"lr_mult": 0.0}, 1.0),  # there is no such branch
    ],
)
def test_c21_what_is_as_it_should_be_is_not_named(options: dict, mult: float) -> None:
    optimizer = MPlusAdam([parameter(3)], **{"lr": 1e-3, "lr_mult": 4e-3} | options)
    (group,) = optimizer.param_groups

    def train() -> None:
        step(optimizer)
        group["lr"], group["lr_mult"] = group["lr"] / 2, group["lr_mult"] * mult
        step(optimizer)

    assert said(train) == []


def test_c21_a_rate_that_stays_or_is_the_only_one_is_not_named() -> None:
    assert said(lambda: [step(o := MPlusAdam([parameter(3)])), step(o)]) == []
    for build in (AdamW, Madam):
        optimizer = build([parameter(3)], lr=1e-2)
        halve(optimizer)
        assert said(lambda optimizer=optimizer: step(optimizer)) == []


def test_c21_a_rate_that_is_set_by_hand_in_one_of_two_groups_is_named() -> None:
    optimizer = MPlusAdam([{"params": [parameter(3)]}, {"params": [parameter(2)]}], lr=torch.tensor(1e-3))
    assert said(lambda: step(optimizer)) == []
    optimizer.param_groups[1]["lr"] = torch.tensor(5e-4)
    assert len(said(lambda: [step(optimizer), step(optimizer)])) == 1


def test_c21_a_loaded_state_is_named_once_and_a_copy_not_again() -> None:
    first = MPlusAdam([parameter(3)], lr=1e-3)
    halve(first)
    assert len(said(lambda: step(first))) == 1
    assert said(lambda: [first.load_state_dict(first.state_dict()), step(first), step(copy.deepcopy(first))]) == []
    second = MPlusAdam([parameter(3)], lr=1e-3)
    assert len(said(lambda: [second.load_state_dict(first.state_dict()), step(second), step(second)])) == 1


def test_c21_a_checkpoint_of_an_earlier_version_is_loaded_and_says_nothing() -> None:
    """It has no `_base_lr_mult`, and False is what its `tie_lr_mult` was by default."""
    first, second = MPlusAdam([parameter(3)], tie_lr_mult=False), MPlusAdam([parameter(3)])
    step(first)
    saved = first.state_dict()
    del saved["param_groups"][0]["_base_lr_mult"]
    second.load_state_dict(saved)
    halve(second)
    assert said(lambda: step(second)) == []


def test_c21_a_study_whose_lr_mult_is_constant_is_not_named() -> None:
    optimizer = build_optimizer([{"params": [parameter(3)]}], "m-plus-adam", {}, masters="fp32")
    halve(optimizer)
    assert said(lambda: step(optimizer)) == []


# --- rates that look swapped -----------------------------------------------------------------------------------------


def test_c21_swapped_rates_are_named_once_where_they_are_given() -> None:
    with pytest.warns(
        OptimizerWarning, match=r"lr = 0.004 is 50 times lr_mult = 8e-05; the rates may be swapped"
    ) as got:
        optimizer = MPlusAdam([parameter(3)], 4e-3, 8e-5, tie_lr_mult=True)
    assert [Path(w.filename).name for w in got] == [Path(__file__).name]
    group = {"params": [parameter(2)], "lr": 1.0, "lr_mult": 1e-3}
    assert said(lambda: [step(optimizer), optimizer.add_param_group(group), step(optimizer)]) == []


def test_c21_swapped_rates_of_a_group_or_of_a_loaded_state_are_named() -> None:
    fine = MPlusAdam([parameter(3)])
    group = {"params": [parameter(2)], "lr": 0.1, "lr_mult": 1e-3}
    assert len(said(lambda: fine.add_param_group(dict(group)))) == 1
    other = MPlusAdam([parameter(3)])
    with warnings.catch_warnings(action="ignore"):
        swapped = MPlusAdam([parameter(3)], 4e-3, 8e-5)
    step(swapped)
    assert len(said(lambda: [other.load_state_dict(swapped.state_dict()), step(other), step(other)])) == 1


def test_c21_the_end_of_a_schedule_does_not_look_like_swapped_rates() -> None:
    """lr_mult may reach zero before lr does: the peaks are compared."""
    optimizer = MPlusAdam([parameter(3)], lr=8e-5, lr_mult=4e-3)
    optimizer.param_groups[0].update(lr=4e-5, lr_mult=1e-9)
    assert said(lambda: step(optimizer)) == []


STUDIES = [None, *sorted((ROOT / "studies").glob("*.yaml"))]


def tried(config: StudyConfig, name: str, key: str) -> list[float]:
    """The values of a rate that a study gives an entry; a level of an ablation has the other rate of its base."""
    entry = config.optimizers[name]
    base = config.optimizers.get(name.partition("@")[0], entry)
    if (given := (entry.values or {}).get(key)) is not None:
        return [float(given)]
    searched = (entry.search or {}).get(key) or (base.search or {}).get(key)
    default = check_hyperparameters(entry.optimizer or name.partition("@")[0], {})[key]
    return sorted(map(float, searched or [default]))


def largest_ratio(lrs: list[float], mults: list[float], *, extended: bool) -> float:
    """Of lr to lr_mult; extended: with the further trial next to the corner, a factor away in one of the rates."""
    factors = [values[1] / values[0] for values in (lrs, mults) if len(values) > 1 and extended]
    return lrs[-1] / mults[0] * max([1.0, *factors])


@pytest.mark.parametrize("overlay", STUDIES, ids=lambda path: path.stem if path else "config")
def test_c21_no_study_of_the_repository_looks_swapped(overlay: Path | None) -> None:
    config = load_study([ROOT / "config.yaml", *([overlay] if overlay else [])])
    found = {}
    for name, entry in config.optimizers.items():
        if "lr_mult" in check_hyperparameters(entry.optimizer or name.partition("@")[0], {}):
            lrs, mults = (tried(config, name, key) for key in ("lr", "lr_mult"))
            if mults[0]:
                found[name] = largest_ratio(lrs, mults, extended=bool(config.tuning.extend))
    assert len(found) >= 10
    assert {name for name, ratio in found.items() if ratio > SWAPPED_FROM} <= {"m-plus-adam@adamw_lr"}, (
        "which follows lr_mult as far down as it gets better, at the rate of AdamW"
    )


# --- compile = "auto" ------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a thousand parameters gains from a compilation."""
    monkeypatch.setattr(compiled, "GAINS_FROM", 1000)


def graphs(optimizer: LowPrecisionOptimizer) -> int:
    return sum(slot.compiled is not None for slot in optimizer._slots.values())


def test_c21_auto_is_the_default_of_every_class_and_of_no_study() -> None:
    for build in (MPlusAdam, AdamW, Madam, AdditiveTwin):
        assert build([parameter(3)]).param_groups[0]["compile"] == "auto"
    assert (
        build_optimizer([{"params": [parameter(3)]}], "adamw", {}, masters="fp32").param_groups[0]["compile"] is False
    )


@pytest.mark.parametrize(("sizes", "expected"), [((20, 30), False), ((600, 400), True)])
def test_c21_auto_compiles_where_the_whole_optimizer_is_large_enough(few: None, sizes: tuple, expected: bool) -> None:
    optimizer = MPlusAdam([parameter(n) for n in sizes])
    step(optimizer)
    assert graphs(optimizer) == (2 if expected else 0)


def test_c21_auto_counts_what_is_trained(few: None) -> None:
    p, frozen = parameter(400), parameter(5000).requires_grad_(False)
    optimizer = AdamW([p, frozen])
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert graphs(optimizer) == 0
    frozen.requires_grad_(True)
    step(optimizer)
    assert graphs(optimizer) == 2


def test_c21_auto_without_a_compiler_is_eager_with_one_warning(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compile_problem", lambda device: "there is no compiler")
    compiled.can_compile.cache_clear()
    optimizer, eager = AdamW([parameter(2000)]), AdamW([parameter(2000)], compile=False)
    try:
        (message,) = said(lambda: [step(optimizer), step(optimizer), step(AdamW([parameter(3000)]))])
    finally:
        compiled.can_compile.cache_clear()
    assert "there is no compiler. Steps on this device run eagerly" in message
    step(eager)
    step(eager)
    assert torch.equal(*(o.param_groups[0]["params"][0] for o in (optimizer, eager)))


def test_c21_a_small_model_is_told_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = AdamW([parameter(3)])
    with caplog.at_level(logging.INFO, logger="mpadam"):
        assert said(lambda: [step(optimizer), step(optimizer), step(AdamW([parameter(3)], compile=False))]) == []
    (record,) = caplog.records
    assert record.getMessage() == "steps run eagerly: 3 parameters are too few to gain from a compilation"


def test_c21_a_warning_of_a_compiled_step_is_outside_its_graph(few: None) -> None:
    """The same graphs, whether something is warned of or not, and no second compilation."""
    from torch._dynamo.utils import counters

    optimizer = MPlusAdam([parameter(2000)])
    step(optimizer)
    before = counters["stats"]["unique_graphs"]
    halve(optimizer)
    assert len(said(lambda: step(optimizer))) == 1
    assert graphs(optimizer) == 1
    assert counters["stats"]["unique_graphs"] == before


def test_c21_auto_goes_through_a_checkpoint() -> None:
    first, second = AdamW([parameter(3)]), AdamW([parameter(3)], compile=False)
    step(first)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["compile"] == "auto"


# --- what the page says ----------------------------------------------------------------------------------------------


def test_c21_the_page_lists_the_defaults_that_differ_from_torch() -> None:
    theirs = {name: p.default for name, p in signature(torch.optim.AdamW).parameters.items()}
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.partition("## Defaults")[2].partition("\n## ")[0], re.M))
    assert rows.keys() == {"lr", "betas", "eps", "weight_decay"}
    for key, row in rows.items():
        shown = [yaml.safe_load(cell.replace("(", "[").replace(")", "]")) for cell in row.split(" | ")[:3]]
        shown = [tuple(value) if isinstance(value, list) else float(value) for value in shown]
        ours = (build.signature.parameters[key].default for build in (MPlusAdam, AdamW))
        assert shown == [*ours, theirs[key]], key


def test_c21_the_category_is_public() -> None:
    assert mpadam.OptimizerWarning is OptimizerWarning
    assert "OptimizerWarning" in dir(mpadam)
    assert issubclass(OptimizerWarning, UserWarning)
