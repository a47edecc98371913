"""Step times: what is timed, medians and quartiles by hand, and what the table says of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import count
from pathlib import Path

import pytest
import torch
from exhibits_made import from_folder

from mpadam.cli import main
from mpadam.exhibits import runtime_overhead
from mpadam.measure.step_time import TORCH_FUSED, Timing, circumstances, measure_step_time, subjects
from mpadam.study.measure import KINDS, Measure, StepTime, parse_options

QUICK = StepTime(
    optimizers=("adamw", "adamw-sr", "m-plus-adam", "m-plus-adam-apollo-e"),
    masters=("fp32", "bf16", "fp8", "nvfp4"),
    shapes=((8, 32), (16, 32)),
    warmup=1,
    rounds=3,
    steps=2,
    rivals=("torch",),
)


def test_every_optimizer_is_timed_in_every_format_where_it_means_something() -> None:
    found = {(subject.name, subject.masters) for subject in subjects(QUICK)}
    ours = {(o, m) for o in QUICK.optimizers for m in QUICK.masters} - {("adamw-sr", "fp32")}
    assert found == ours | {(TORCH_FUSED, "fp32"), (TORCH_FUSED, "bf16")}


def test_a_timed_step_is_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of the subject move, and its gradient stays: otherwise nothing would be timed."""
    built = []

    def watched(layers: torch.nn.Module, *args: object, **options: object) -> object:
        built.append(layers)
        return real(layers, *args, **options)

    from mpadam.measure import step_time as module

    real = module.build_optimizer
    monkeypatch.setattr(module, "build_optimizer", watched)
    [subject] = module.subjects(StepTime(optimizers=("m-plus-adam",), masters=("bf16",), shapes=((8, 32),), rivals=()))
    [p] = built[0].parameters()
    before, gradient = p.detach().clone(), p.grad.clone()
    subject.step()
    assert (p != before).float().mean() > 0.9
    assert torch.equal(p.grad, gradient)


def test_a_sample_is_the_mean_of_the_steps_of_a_visit() -> None:
    """A clock that counts its readings: each visit spans one tick, and has `steps` steps."""
    ticks = count()
    timings = measure_step_time(QUICK, clock=lambda: float(next(ticks)))
    assert len(timings) == 17
    assert all(t.samples == (0.5, 0.5, 0.5) for t in timings)


def test_threads_of_the_process_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    measure_step_time(StepTime(optimizers=("adamw",), masters=("bf16",), shapes=((8, 8),), rounds=1, threads=1))
    assert torch.get_num_threads() == before


def test_the_table_has_times_ratios_and_circumstances(tmp_path: Path) -> None:
    timings = [
        Timing("adamw", "bf16", (2e-3, 2e-3, 2e-3)),
        Timing("m-plus-adam", "bf16", (2e-3, 3e-3, 4e-3)),
        Timing("m-plus-adam", "nvfp4", (9e-3, 9e-3, 9e-3)),
        Timing(TORCH_FUSED, "bf16", (5e-4, 5e-4, 5e-4)),
    ]
    about = {
        "device": "a processor",
        "threads": 1,
        "versions": {"torch": "9.9"},
        "absent": ["optimi"],
        "parameters": 768,
    }
    kept = {"options": asdict(QUICK), **about, "seconds": [asdict(timing) for timing in timings]}
    (tmp_path / "measure").mkdir()
    (tmp_path / "measure" / "step-time.json").write_text(json.dumps(kept))
    table = from_folder("runtime_overhead", tmp_path)
    assert runtime_overhead.TORCH_FUSED == TORCH_FUSED
    rows = {r[0].text: dict(zip(table.header, (e.text for e in r), strict=True)) for r in table.rows}
    assert rows["M+Adam"]["bf16 ms"] == "3.00 (2.50–3.50)"
    assert rows["M+Adam"]["bf16 / AdamW"] == "1.50"
    assert rows["M+Adam"]["bf16 / torch fused"] == "6.00"
    assert rows["M+Adam"]["fp8 ms"] == ""
    assert rows[TORCH_FUSED]["bf16 ms"] == "0.500 (0.500–0.500)"
    assert table.notes == (
        "a processor, 1 thread; torch 9.9; torch.compile off.",
        "Not installed where this was measured: optimi.",
    )
    assert "n = 3 samples" in table.caption


def test_circumstances_name_device_versions_and_what_is_absent() -> None:
    about = circumstances(StepTime(rivals=("torch", "optimi")))
    assert about["device"]
    assert about["versions"]["torch"] == torch.__version__
    assert ("optimi" in about["versions"]) != ("optimi" in about["absent"])


def test_rivals_that_are_installed_are_timed() -> None:
    pytest.importorskip("optimi")
    names = [s.name for s in subjects(StepTime(optimizers=(), shapes=((8, 8),), rivals=("optimi", "torchao")))]
    assert "optimi AdamW, Kahan" in names


def test_the_command_writes_the_table_and_every_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"optimizers": ["adamw"], "masters": ["bf16"], "shapes": [[8, 8]], "rounds": 2, "rivals": ["torch"]}
    assert main(["measure", "step-time", "--options", json.dumps(options), "--out", str(tmp_path)]) == 0
    assert "Runtime overhead" in capsys.readouterr().out
    assert {p.suffix for p in (tmp_path / "tables").iterdir()} == {".csv", ".md", ".tex", ".txt", ".json"}
    records = json.loads((tmp_path / "measure/step-time.json").read_text())
    assert [len(timing["samples"]) for timing in records["seconds"]] == [2, 2, 2]
    assert all(sample > 0 for timing in records["seconds"] for sample in timing["samples"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ('{"rouns": 3}', "rouns"),
        ('{"rounds": 0}', "rounds"),
        ('{"optimizers": ["adamv"]}', "adamw"),
        ('{"masters": ["fp7"]}', "fp7"),
        ('{"shapes": []}', "shapes"),
    ],
)
def test_wrong_options_are_told_by_name(options: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "step-time", "--options", options, "--out", "nowhere"]) == 2
    assert told in capsys.readouterr().err
    assert not Path("nowhere").exists()


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="device: cpu"):
        measure_step_time(StepTime(device="cuda"))


def test_options_survive_the_trip_through_a_rule() -> None:
    for kind in KINDS:
        assert parse_options(kind, Measure().text(kind)) == getattr(Measure(), kind.replace("-", "_"))
