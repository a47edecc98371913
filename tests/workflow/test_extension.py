"""Issue 17, B4: further trials of a tuning are one job of a plan that is known from the start."""

import json

import pytest
import yaml

from tests.workflow.toy import Toy

TUNING = "results/toy/tuning/nano/bf16-bf16/m-plus-adam"
SELECTED = f"{TUNING}/selected.yaml"


@pytest.fixture
def extending(toy: Toy) -> Toy:
    """The finished toy study, its two trials unchanged, and two further ones allowed."""
    toy.edit(
        "toy.yaml",
        "{lr: [1e-3, 3e-3], lr_mult: [3e-3]}}",
        "{lr: [1e-3, 3e-3], lr_mult: null}, values: {lr_mult: 3e-3}}",
    )
    toy.edit("toy.yaml", "trials: 2,", "trials: 2, extend: 2,")
    return toy


def test_further_trials_are_one_job_and_repeat_nothing(extending: Toy) -> None:
    tuning = extending.folder / TUNING
    done = extending.snakemake(SELECTED)
    assert done.returncode == 0, done.stdout + done.stderr
    selected = yaml.safe_load((extending.folder / SELECTED).read_text())
    further = [trial["hash"] for trial in selected["trials"] if "why" in trial]
    assert len(further) == selected["further"]["made"] > 0  # the best of two trials is always at an end
    summaries = [tuning / f"trial{2 + k}" / "summary.json" for k in range(len(further))]
    assert [json.loads(path.read_text())["hash"] for path in summaries] == further

    metrics = {path: path.stat().st_mtime_ns for path in tuning.glob("trial*/metrics.jsonl")}
    before = summaries[0].read_text()
    summaries[0].write_text(json.dumps({**json.loads(before), "val_loss": 1.0}))
    assert extending.planned(SELECTED) == {"extend": 1, "select": 1}  # edited by hand
    summaries[0].unlink()
    assert extending.snakemake(SELECTED).returncode == 0  # lost
    assert summaries[0].read_text() == before
    assert metrics == {path: path.stat().st_mtime_ns for path in tuning.glob("trial*/metrics.jsonl")}
    assert extending.planned(SELECTED) == {}


def test_further_trials_are_one_job_where_each_trial_is_one_too(extending: Toy) -> None:
    extending.edit("toy.yaml", "trials_per_job: all", "trials_per_job: 1")
    assert extending.planned(SELECTED) == {"trial_spec": 2, "trial": 2, "extend": 1, "select": 1}


def test_without_an_allowance_nothing_is_asked_for_again(toy: Toy) -> None:
    toy.edit("toy.yaml", "trials: 2,", "trials: 2, extend: 0,")
    assert toy.planned() == {}
