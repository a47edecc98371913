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
    assert extending.planned(SELECTED) == {"extend": 1, "select": 1}
    done = extending.snakemake(SELECTED)
    assert done.returncode == 0, done.stdout + done.stderr
    selected = yaml.safe_load((extending.folder / SELECTED).read_text())
    made = selected["further"]["made"]
    assert made > 0  # the best of two trials is always at an end
    further = [trial for trial in selected["trials"] if "why" in trial]
    assert [json.loads((tuning / f"trial{2 + k}/summary.json").read_text())["hash"] for k in range(made)] == [
        trial["hash"] for trial in further
    ]
    assert extending.planned(SELECTED) == {}

    metrics = {path: path.stat().st_mtime_ns for path in tuning.glob("trial*/metrics.jsonl")}
    summary = tuning / "trial2" / "summary.json"
    before = summary.read_text()
    summary.write_text(json.dumps({**json.loads(before), "val_loss": 1.0}))
    assert extending.planned(SELECTED)["extend"] == 1  # edited by hand
    summary.unlink()
    assert extending.planned(SELECTED)["extend"] == 1  # lost
    assert extending.snakemake(SELECTED).returncode == 0
    assert summary.read_text() == before
    assert metrics == {path: path.stat().st_mtime_ns for path in tuning.glob("trial*/metrics.jsonl")}

    extending.edit("toy.yaml", "extend: 2", "extend: 3")
    assert extending.planned(SELECTED) == {"extend": 1, "select": 1}
    extending.edit("toy.yaml", "trials_per_job: all", "trials_per_job: 1")
    assert extending.planned(SELECTED) == {"trial_spec": 2, "trial": 2, "extend": 1, "select": 1}


def test_without_an_allowance_no_job_is_added(toy: Toy) -> None:
    toy.edit("toy.yaml", "trials: 2,", "trials: 2, extend: 0,")
    assert toy.planned() == {}
