"""Matrix fitting: the batch against the optimizer classes, what each task must show, choices, figures, files."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from exhibits_made import from_folder
from torch import nn

from mpadam.diagnostics.matrix_fitting import (
    METHODS,
    TASKS,
    Sweep,
    choose,
    fit,
    problem,
    produce,
    rate_points,
    relative_error,
    write_records,
)
from mpadam.optim.registry import build_optimizer
from mpadam.study.diagnostics import MatrixFitting

SMALL = MatrixFitting(
    size=5,
    steps=40,
    seeds=2,
    tuning_seeds=1,
    rates_adamw=(1e-3, 0.1, 10.0),
    rates_madam=(1e-2, 0.1),
    rates_additive=(1e-2, 0.1),
    rates_multiplicative=(1e-3, 0.3),
)
LARGE = list(TASKS).index("large weights")


def classic_errors(method: str, rates: dict[str, float], start, target, steps: int) -> list[float]:
    """The same by the optimizer class, one matrix, one rate."""
    p = nn.Parameter(start.to(torch.bfloat16))
    decay = dict.fromkeys(("weight_decay", "weight_decay_mult") if "lr_mult" in rates else ("weight_decay",), 0.0)
    optimizer = build_optimizer([{"params": [p]}], method, rates | decay, masters="bf16", state_dtype="bf16")
    errors = [relative_error(p.detach(), target).item()]
    for _ in range(steps):
        p.grad = (p.detach().float() - target).to(torch.bfloat16)
        optimizer.step()
        errors.append(relative_error(p.detach(), target).item())
    return errors


@pytest.mark.parametrize("method", METHODS)
def test_the_batch_is_the_optimizer_bit_for_bit(method):
    matrices = problem(SMALL)
    sweep = fit(method, matrices, SMALL)
    assert sweep.errors.shape == (SMALL.steps + 1, len(rate_points(method, SMALL)), len(TASKS), 3)
    for task in range(len(TASKS)):
        for point in (0, len(sweep.rates) - 1):
            seed = task % 3
            expected = classic_errors(
                method, sweep.rates[point], matrices.start[task, seed], matrices.target[task, seed], SMALL.steps
            )
            assert sweep.errors[:, point, task, seed].tolist() == expected


def test_tasks_are_what_they_are_called():
    matrices = problem(replace(SMALL, size=40))
    start, target = (dict(zip(TASKS, x, strict=True)) for x in (matrices.start, matrices.target))
    turned = start["sign errors"] == -target["sign errors"]
    assert 0.45 < turned.double().mean() < 0.55
    assert torch.equal(start["sign errors"].abs(), target["sign errors"].abs())
    assert not start["zero weights"].any()
    assert start["small weights"].abs().max() <= 4e-3
    assert torch.equal(start["small weights"].sign(), target["small weights"].sign())
    assert target["large weights"].abs().min() >= 16
    assert 0.2 < (start["large weights"] / target["large weights"]).log().std() < 0.3
    for name in ("sign errors", "zero weights", "small weights"):
        assert 0.25 <= target[name].abs().min() <= target[name].abs().max() <= 4
    assert not torch.equal(matrices.target[0, 0], matrices.target[0, 1])


def test_a_matrix_does_not_depend_on_how_many_others_there_are():
    few, many = problem(SMALL), problem(replace(SMALL, seeds=4))
    assert torch.equal(few.target[:, :2], many.target[:, :2])
    assert torch.equal(few.target[:, 2:], many.target[:, 4:])  # tuning seeds


def test_a_multiplicative_branch_alone_neither_leaves_zero_nor_turns_a_sign():
    matrices = problem(SMALL)
    sweep = fit("madam", matrices, SMALL)
    errors = dict(zip(TASKS, sweep.errors.unbind(2), strict=True))
    assert (errors["zero weights"] == 1).all()
    wrong = (matrices.start[0] != matrices.target[0]).double().mean((-2, -1))  # each is off by its target at least
    assert (errors["sign errors"] >= wrong.sqrt() - 1e-6).all()


def test_additive_steps_below_half_a_spacing_leave_large_weights_where_they_are():
    sweep = fit("adamw", problem(SMALL), SMALL)
    at_16 = 2.0 ** (4 - 7) / 2  # half the spacing of bf16 from 16 on
    assert sweep.rates[0]["lr"] < at_16 < sweep.rates[-1]["lr"]
    stuck, moving = sweep.errors[:, 0, LARGE], sweep.errors[:, -1, LARGE]
    assert torch.equal(stuck, stuck[:1].expand_as(stuck))
    assert (moving[-1] < moving[0]).all()


def hand_made(errors: list[list[list[float]]], rates: list[dict[str, float]], method: str = "adamw") -> Sweep:
    """A sweep of two updates whose final errors are (points, tasks, seeds)."""
    return Sweep(method, rates, torch.tensor(errors).expand(3, -1, -1, -1))


def test_rates_are_chosen_on_the_tuning_seeds_alone():
    inf = float("inf")
    rates = [{"lr": lr} for lr in (0.1, 0.2, 0.3, 0.4)]
    # two tasks; the seed reported on, then one for tuning
    errors = [[[0.001, 0.9], [0.5, 0.8]], [[0.5, 0.2], [0.5, 0.7]], [[0.5, 0.4], [0.5, 0.1]], [[0.1, inf], [0.1, 0.01]]]
    per_task = choose(hand_made(errors, rates), "best per task", seeds=1)
    assert per_task.points == [1, 3]
    assert per_task.open_ends == [[], ["lr"]]
    assert per_task.final(0, 1).tolist() == pytest.approx([0.5])
    shared = choose(hand_made(errors, rates), "one for all tasks", seeds=1)
    assert shared.points == [2, 2]


@pytest.fixture(scope="module")
def produced(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    options = replace(SMALL, rates_adamw=(0.03, 0.1, 3e38))  # the last one blows up
    produce(options, root)
    return options, root


def test_what_blows_up_is_empty_in_files_and_never_chosen(produced):
    options, root = produced
    sweeps = pd.read_csv(root / "diagnostics" / "matrix-fitting" / "sweeps.csv")
    at_top = sweeps[(sweeps.method == "adamw") & (sweeps.lr > 1e30)]
    assert len(at_top) == len(TASKS) * options.seeds
    assert at_top.error.isna().all()
    results = json.loads((root / "diagnostics" / "matrix-fitting" / "results.json").read_text())
    chosen = [task["lr"] for choice in results["choices"] for task in choice["tasks"].values()]
    assert max(chosen) < 1e30


def test_files_are_tidy_and_whole(produced):
    options, root = produced
    folder = root / "diagnostics" / "matrix-fitting"
    curves, sweeps = pd.read_csv(folder / "curves.csv"), pd.read_csv(folder / "sweeps.csv")
    points = sum(len(rate_points(method, options)) for method in METHODS)
    assert len(sweeps) == points * len(TASKS) * options.seeds
    assert len(curves) == len(METHODS) * 2 * len(TASKS) * options.seeds * (options.steps + 1)
    assert not curves.error.isna().any()
    table = from_folder("matrix_fitting", root)
    assert len(table.data) == len(METHODS) * 2 * len(TASKS) * options.seeds
    assert len(from_folder("figure5", root).figure.axes) == 3 * len(TASKS)


def choices_of(options: MatrixFitting, *sweeps: Sweep):
    return [choose(s, how, seeds=options.seeds) for s in sweeps for how in ("best per task", "one for all tasks")]


def test_figures_show_every_method_in_every_panel_with_one_seed_too(tmp_path):
    options = replace(SMALL, seeds=1, steps=12)
    produce(options, tmp_path)
    panels = from_folder("figure3", tmp_path).figure.axes
    assert [axes.get_title()[4:] for axes in panels] == list(TASKS)
    for axes in panels:
        assert len(axes.lines) == len(METHODS)
        assert all(len(line.get_xdata()) == options.steps + 1 for line in axes.lines)
        assert axes.get_yscale() == "log"
    panels = from_folder("figure5", tmp_path).figure.axes
    assert len(panels) == 3 * len(TASKS)


def test_the_table_says_div_and_edge(tmp_path):
    inf = float("inf")
    options = replace(SMALL, seeds=2)
    rates = [{"lr": 0.1}, {"lr": 0.2}]
    errors = [[[0.1, inf, 0.2]] * 4, [[0.2, 0.3, 0.9]] * 4]
    sweep = hand_made(errors, rates)
    write_records(options, [sweep], choices_of(options, sweep), tmp_path / "diagnostics" / "matrix-fitting")
    table = from_folder("matrix_fitting", tmp_path)
    texts = [entry.text for entry in table.rows[0]]
    assert texts[:4] == ["best per task", "AdamW", "div. (1 of 2)", "0.1 (edge)"]
    assert table.data.error.isna().sum() == 2 * len(TASKS)
