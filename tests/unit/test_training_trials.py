"""Issue 17, B4: `mpadam extend` trains the further trials of a tuning, and `mpadam tune` chooses among all of them."""

import json
from pathlib import Path

import pytest
import torch
from training_runs import make_data, make_run, train

from mpadam.cli import main
from mpadam.study.load import read_yaml
from mpadam.study.spec import read_run_file

RATES = [1e-4, 2e-4]  # far too low: the best one is the larger, and so is every further one


@pytest.fixture(scope="module")
def tuning(tmp_path_factory) -> Path:
    """The folder of a tuning whose two trials are done."""
    root = tmp_path_factory.mktemp("tuning")
    data = make_data(root)
    for number, rate in enumerate(RATES):
        values = {"lr": rate, "weight_decay": 0.0}
        make_run(root / f"trial{number}", data, name="adamw", values=values, steps=4, checkpoint_every=2)
        assert train(root / f"trial{number}") == 0
    return root


def command(name: str, tuning: Path, *arguments: str, extend: int = 2) -> int:
    searched = json.dumps({"trials": [{"lr": rate} for rate in RATES], "extend": extend})
    file = {"extend": "", "tune": "summary.json"}[name]
    trials = [str(tuning / f"trial{number}" / file) for number in range(len(RATES))]
    before = torch.are_deterministic_algorithms_enabled()
    try:
        return main([name, "--trials", *trials, "--searched", searched, *arguments])
    finally:
        torch.use_deterministic_algorithms(before)


def test_further_trials_are_trained_resumed_recorded_and_chosen(tuning: Path) -> None:
    record, selected = tuning / "extension.yaml", tuning / "selected.yaml"
    assert command("extend", tuning, "--out", str(record), "--stop-after-minutes", "0") == 75
    assert not record.exists()
    assert (tuning / "trial2" / "checkpoints").exists()

    assert command("extend", tuning, "--out", str(record)) == 0
    further = read_yaml(record)
    assert (further["allowed"], further["first"]) == (2, 2)
    assert [trial["values"] for trial in further["trials"]] == [{"lr": 4e-4}, {"lr": 8e-4}]
    assert json.loads((tuning / "trial2/summary.json").read_text())["attempts"] == 2

    sibling, made = (read_run_file(tuning / f"trial{k}" / "run.yaml") for k in (0, 2))
    assert (made.labels.trial, made.spec.optimizer.values) == (2, {"lr": 4e-4, "weight_decay": 0.0})
    values = sibling.spec.optimizer.model_copy(update={"values": made.spec.optimizer.values})
    assert made.spec == sibling.spec.model_copy(update={"optimizer": values})

    assert command("tune", tuning, "--out", str(selected)) == 0
    chosen = read_yaml(selected)
    assert (chosen["best"], chosen["values"], chosen["bracketed"]) == (3, {"lr": 8e-4}, {"lr": False})
    assert chosen["further"] == {"allowed": 2, "made": 2}
    assert ["why" in trial for trial in chosen["trials"]] == [False, False, True, True]
    assert chosen["trials"][2:] == further["trials"]


def test_a_job_that_runs_again_repeats_no_finished_trial(tuning: Path, tmp_path: Path) -> None:
    assert command("extend", tuning, "--out", str(tmp_path / "one.yaml"), extend=1) == 0
    metrics = tuning / "trial2" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    (tuning / "trial2" / "summary.json").unlink()  # lost; the folder has the result
    assert command("extend", tuning, "--out", str(tmp_path / "again.yaml"), extend=1) == 0
    assert metrics.stat().st_mtime_ns == before
    assert (tmp_path / "one.yaml").read_text() == (tmp_path / "again.yaml").read_text()


def test_a_selection_without_its_further_trials_is_refused(tuning: Path, tmp_path: Path, capsys) -> None:
    assert command("tune", tuning, "--out", str(tmp_path / "selected.yaml"), extend=9) == 2
    assert "summary.json" in capsys.readouterr().err
    assert not (tmp_path / "selected.yaml").exists()
