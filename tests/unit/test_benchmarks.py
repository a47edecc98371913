"""What the benchmarks stand on: the paper's parameters, a foreach M+Adam that is one, reports by hand, and --help."""

from __future__ import annotations

import csv
import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from curves import read_curves
from paper_set import PaperSet, foreach_m_plus_adam
from report import Line, report

from mpadam import MPlusAdam
from mpadam.llama import PAPER_SIZES
from mpadam.measure.step_time import Subject, time_subjects
from mpadam.numerics import spacing
from mpadam.optim.groups import parameter_groups

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SMALL = PaperSet(replace(PAPER_SIZES["60m"], layers=1), vocabulary=16)


def script(name: str, *words: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a benchmark in this process, which has imported torch already; its exit code."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    return ended.value.code


def test_the_paper_set_is_the_paper_s() -> None:
    assert PaperSet(PAPER_SIZES["60m"]).count() == 58_073_600
    model = SMALL.model()
    assert sum(p.numel() for p in model.parameters()) == SMALL.count()
    assert all(p.dtype == p.grad.dtype == torch.bfloat16 for p in model.parameters())
    groups = {group["role"]: len(group["params"]) for group in parameter_groups(model)}
    assert groups == {"projection": 7, "embedding": 1, "head": 1, "norm": 3}


def test_bytes_that_a_step_moves() -> None:
    """bf16: weight 2+2, gradient 2, three moments 6+6."""
    weights = PaperSet(replace(PAPER_SIZES["60m"], layers=1), vocabulary=16)
    weights.ours("m-plus-adam", "bf16", compile=False)
    assert weights.bytes["m-plus-adam, eager", "bf16"] == 18 * weights.count()


def test_the_foreach_version_is_m_plus_adam() -> None:
    """Same moments, and weights within one bf16 ulp, over three steps."""
    stream = torch.Generator().manual_seed(0)
    start = [(torch.randn(shape, generator=stream) * 0.02).bfloat16() for shape in ((16, 24), (40,))]
    ours, theirs = ([torch.nn.Parameter(w.clone()) for w in start] for _ in range(2))
    optimizer, foreach = MPlusAdam(ours, state_dtype="bf16"), foreach_m_plus_adam(theirs)
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = (torch.randn(p.shape, generator=stream) * 1e-3).bfloat16()
            q.grad = p.grad.clone()
        optimizer.step()
        foreach.step()
        for p, q in zip(ours, theirs, strict=True):
            assert ((p.float() - q.float()).abs() <= spacing(p.detach().float(), "bf16")).all()
            q.data.copy_(p.data)
    assert not any(torch.equal(p, w) for p, w in zip(ours, start, strict=True))
    for p, v_e in zip(ours, foreach.v_e, strict=True):
        torch.testing.assert_close(optimizer.state[p]["v_e"], v_e, rtol=2**-7, atol=0)


def test_subjects_take_turns() -> None:
    calls: list[str] = []
    everyone = [Subject(name, "", lambda name=name: calls.append(name)) for name in "ab"]
    ticks = iter(range(100))
    timings = time_subjects(everyone, warmup=1, rounds=2, steps=2, clock=lambda: float(next(ticks)))
    assert "".join(calls) == "ab" + "aabb" * 2
    assert [t.samples for t in timings] == [(0.5, 0.5), (0.5, 0.5)]


def test_a_ratio_is_the_median_of_the_ratios_of_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second round was slow for both; ratios are 2, 3, 4 although the medians' ratio is 10 / 3."""
    lines = [Line("base", "bf16", (1.0, 9.0, 3.0)), Line("other", "bf16", (2.0, 27.0, 12.0), bytes=24 * 10**9)]
    rows = report("made-up", lines, {"size": "tiny"}, reference=("base", "bf16"), device="cpu", out=tmp_path,
                  bandwidth=4e9)  # fmt: skip
    assert rows[1]["ratio"] == 3.0
    assert (rows[1]["median"], rows[1]["smallest"]) == (12_000.0, 2_000.0)
    assert rows[1]["gigabytes_per_s"] == 2.0
    assert rows[1]["share_of_copy"] == 0.5
    told = capsys.readouterr().out
    assert f"torch {torch.__version__}" in told
    assert "| other | bf16 | 1.2e+04 |" in told
    assert "50%" in told
    kept = json.loads((tmp_path / "made-up.json").read_text())
    assert kept["samples"][0]["samples"] == [1.0, 9.0, 3.0]
    assert kept["about"]["load"] >= 0
    with (tmp_path / "made-up.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["base", "other"]


@pytest.mark.slow
def test_growth_of_commands_and_dry_runs_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sizes of each, once: runs and jobs are counted, and what is written can be drawn."""
    words = ["--what", "commands", "dry-run", "--points", "2", "--rounds", "1", "--out", str(tmp_path)]
    assert script("growth", *words, "--threads", str(torch.get_num_threads()), monkeypatch=monkeypatch) == 0
    curves = {curve.name: curve for curve in read_curves(tmp_path / "growth.json")}
    assert set(curves) == {"mpadam aggregate", "mpadam claims", "mpadam site", "snakemake -n"}
    assert [point.size for point in curves["mpadam site"].points] == [16, 64]
    jobs = [point.size for point in curves["snakemake -n"].points]
    assert 20 < jobs[0] < jobs[1]
    assert all(point.median > 0 for curve in curves.values() for point in curve.points)


def test_a_process_that_fails_is_shown_with_what_it_said() -> None:
    code = "from processes import run; run(['sh', '-c', 'echo no such thing >&2; exit 7'])"
    path = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=path)
    assert ended.returncode == 1
    assert "ended with 7:" in ended.stderr
    assert "no such thing" in ended.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--points", "1"], "two or more"), (["--rounds", "0"], "whole number from 1"), (["--what"], "at least one")],
)
def test_wrong_arguments_of_growth_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert script("growth", *words, monkeypatch=monkeypatch) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["startup", "memory", "training_step", "optimizer_step", "growth", "products", "step_count"]
)
def test_help_has_an_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert script(name, "--help", monkeypatch=monkeypatch) == 0
    assert f"python benchmarks/{name}.py" in capsys.readouterr().out
