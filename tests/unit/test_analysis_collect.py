"""What the grid asks for is collected, and only what fits: statuses, refusals, stale folders."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from analysis_fakes import FakeStudy, fake_study, perplexity, study_content

from mpadam.analysis.collect import COLUMNS, Collected, collect, write_runs
from mpadam.study.grid import run_keys
from mpadam.study.load import parse_study
from mpadam.study.paths import StudyPaths

RUN = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "adamw", "seed": 1}


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return fake_study(tmp_path / "results")


def gather(study: FakeStudy) -> Collected:
    return collect(study.config, study.paths)


def row(collected: Collected, **labels: object) -> pd.Series:
    runs = collected.runs
    for name, value in {**RUN, **labels}.items():
        runs = runs[runs[name] == value]
    assert len(runs) == 1
    return runs.iloc[0]


def test_a_row_a_run_in_the_order_of_the_grid(study: FakeStudy) -> None:
    collected = gather(study)
    assert list(collected.runs.columns) == list(COLUMNS)
    keys = collected.runs[["model", "budget", "regime", "optimizer", "seed"]].itertuples(index=False)
    assert [tuple(key) for key in keys] == [tuple(vars(key).values()) for key in run_keys(study.config)]
    assert collected.count("completed") == 32
    assert row(collected)["val_ppl"] == pytest.approx(perplexity(study.key(**RUN)))
    assert row(collected)["folder"] == "runs/tiny/1x/bf16-bf16/adamw/seed1"
    assert collected.refusals == []


def test_T6_missing_and_diverged_runs_are_what_they_are(study: FakeStudy) -> None:
    study.diverge(**RUN)
    study.remove(**{**RUN, "seed": 0})
    collected = gather(study)
    diverged, missing = row(collected), row(collected, seed=0)
    assert (diverged["status"], diverged["diverged_step"], diverged["last_finite_loss"]) == ("diverged", 17, 9.9)
    assert diverged["problem"] == "the loss is nan"
    assert tuple(missing[["status", "problem"]]) == ("missing", "not begun")
    for lost in (diverged, missing):
        assert lost[["val_loss", "val_ppl"]].isna().all()
    assert collected.count("completed") == 30


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "NaN"])
def test_T6_a_completed_run_without_a_finite_loss_diverged(study: FakeStudy, value: object) -> None:
    study.edit_summary({"val_loss": value}, **RUN)
    assert row(gather(study))["status"] == "diverged"


def test_a_run_that_began_or_failed_is_missing_and_says_so(study: FakeStudy) -> None:
    (study.folder(**RUN) / "summary.json").unlink()
    assert tuple(row(gather(study))[["status", "problem"]]) == ("missing", "begun, not finished")
    (study.folder(**RUN) / "failure.json").write_text("{}")
    assert tuple(row(gather(study))[["status", "problem"]]) == ("missing", "failed: see failure.json")


def test_runs_that_learned_nothing_are_found(study: FakeStudy) -> None:
    assert len(gather(study).above_unigram()) == 0
    study.edit_summary({"val_loss": 5.4, "val_ppl": math.exp(5.4)}, **RUN)
    assert gather(study).above_unigram()["folder"].tolist() == [row(gather(study))["folder"]]


def test_folders_that_the_grid_does_not_ask_for_are_ignored(study: FakeStudy) -> None:
    before = gather(study).runs
    shutil.copytree(study.folder(**RUN), study.folder(**{**RUN, "seed": 7}))
    shutil.copytree(study.folder(**RUN), study.paths.root / "runs/tiny/1x/bf16-bf16/retired/seed1")
    pd.testing.assert_frame_equal(gather(study).runs, before)


def refused(study: FakeStudy, words: str) -> None:
    """The run is refused with these words, the error names the file, and its numbers are not used."""
    collected = gather(study)
    found = row(collected)
    assert found["status"] == "refused"
    assert words in found["problem"]
    assert math.isnan(found["val_ppl"])
    assert collected.refusals == [f"{study.folder(**RUN)}/{found['problem']}"]
    assert collected.refusals[0].startswith(f"{study.folder(**RUN) / 'summary.json'}: ")


def test_a_summary_of_another_hash_is_refused(study: FakeStudy) -> None:
    study.edit_summary({"hash": "0" * 16}, **RUN)
    refused(study, "is not")


def test_a_summary_next_to_no_run_file_is_refused(study: FakeStudy) -> None:
    (study.folder(**RUN) / "run.yaml").unlink()
    study.edit_summary({"hash": None}, **RUN)
    refused(study, "that of run.yaml")


def test_a_summary_whose_metrics_changed_is_refused(study: FakeStudy) -> None:
    with (study.folder(**RUN) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "loss": 1.0}\n')
    refused(study, "metrics.jsonl")


def test_a_summary_whose_probes_changed_is_refused(study: FakeStudy) -> None:
    probes = study.folder(**RUN) / "probes.jsonl"
    probes.write_text('{"step": 1}\n')
    study.edit_summary({"probes_sha256": hashlib.sha256(probes.read_bytes()).hexdigest()}, **RUN)
    assert gather(study).count("refused") == 0
    probes.write_text('{"step": 2}\n')
    refused(study, "probes.jsonl next to it is not the one it was made with")


def test_a_summary_without_its_metrics_is_refused(study: FakeStudy) -> None:
    (study.folder(**RUN) / "metrics.jsonl").unlink()
    study.edit_summary({"metrics_sha256": None}, **RUN)
    refused(study, "metrics.jsonl")


def test_the_summary_of_another_run_is_refused(study: FakeStudy) -> None:
    shutil.rmtree(study.folder(**RUN))
    shutil.copytree(study.folder(**{**RUN, "seed": 0}), study.folder(**RUN))
    refused(study, "it is the summary of fake/tiny/1/bf16-bf16/adamw/0, not of fake/tiny/1/bf16-bf16/adamw/1")


@pytest.mark.parametrize("torn", ["", '{"hash": "01', "[]"])
def test_a_torn_summary_is_refused(study: FakeStudy, torn: str) -> None:
    (study.folder(**RUN) / "summary.json").write_text(torn)
    refused(study, "JSON")


@pytest.mark.parametrize("change", [{"status": "running"}, {"steps": 1.5}, {"seconds": "long"}])
def test_a_summary_with_nonsense_is_refused(study: FakeStudy, change: dict[str, object]) -> None:
    study.edit_summary(change, **RUN)
    refused(study, str(*change.values()))


@pytest.mark.parametrize(
    "change",
    [{"val_ppl": 0.0}, {"spec": {"training": None}}, {"status": "diverged", "diverged": "NaN"}],
)
def test_a_summary_of_another_shape_is_refused(study: FakeStudy, change: dict[str, object]) -> None:
    study.edit_summary(change, **RUN)
    refused(study, "summary.json: ")


def test_T6_runs_of_an_earlier_configuration_are_stale(study: FakeStudy) -> None:
    content = study_content()
    content["optimizers"]["adamw"]["values"]["weight_decay"] = 0.2
    collected = collect(parse_study(content), study.paths)
    stale = collected.runs[collected.runs["status"] == "refused"]
    assert set(stale["optimizer"]) == {"adamw"}
    assert len(stale) == 16
    assert stale["problem"].str.contains("stale").all()


def test_T6_runs_on_other_data_are_stale(study: FakeStudy) -> None:
    manifest = json.loads(study.paths.manifest.read_text())
    study.paths.manifest.write_text(json.dumps({**manifest, "fingerprint": "f" * 16}))
    assert gather(study).count("refused") == 32


def test_T6_runs_with_rates_that_are_no_longer_selected_are_stale(study: FakeStudy) -> None:
    key = next(t.key for t in gather(study).tunings if t.key.optimizer == "adamw")
    path = study.paths.selected(key)
    selected = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**selected, "values": {"lr": 1e-2}, "best": 2}))
    stale = gather(study).runs.query("status == 'refused'")
    assert {tuple(r) for r in stale[["model", "regime", "optimizer"]].to_numpy()} == {tuple(vars(key).values())}


def test_a_selection_of_other_trials_is_refused(study: FakeStudy) -> None:
    content = study_content()
    content["optimizers"]["adamw"]["search"]["lr"] = [1e-3, 3e-3, 2e-2]
    collected = collect(parse_study(content), study.paths)
    statuses = {t.key.optimizer: t.status for t in collected.tunings}
    assert statuses == {"adamw": "refused", "m-plus-adam": "selected"}
    assert sum("the study now searches other values" in line for line in collected.refusals) == 4 + 16


@pytest.mark.parametrize("change", [{"bracketed": {}}, {"bracketed": None}, {"best": 99}, {"values": None}])
def test_a_selection_that_does_not_say_all_is_refused(study: FakeStudy, change: dict[str, object]) -> None:
    """A rate without a word on its range must not pass for a bracketed one."""
    key = gather(study).tunings[0].key
    content = yaml.safe_load(study.paths.selected(key).read_text())
    study.paths.selected(key).write_text(yaml.safe_dump({**content, **change}))
    assert next(t for t in gather(study).tunings if t.key == key).status == "refused"


@pytest.mark.parametrize("content", ["", "values: [", "trials: 3", "status: selected\nvalues: {}\n"])
def test_a_torn_selection_is_refused(study: FakeStudy, content: str) -> None:
    key = gather(study).tunings[0].key
    study.paths.selected(key).write_text(content)
    tuning = next(t for t in gather(study).tunings if t.key == key)
    assert tuning.status == "refused"
    assert any(line.startswith(f"{study.paths.selected(key)}: not a selection") for line in gather(study).refusals)


def test_without_a_manifest_runs_are_held_against_their_run_file_alone(study: FakeStudy) -> None:
    study.paths.manifest.unlink()
    collected = gather(study)
    assert (collected.manifest, collected.count("completed")) == (None, 32)


def test_compile_auto_accepts_what_either_machine_would_have_written(tmp_path: Path) -> None:
    training = {**study_content()["training"], "compile": "auto"}
    assert gather(fake_study(tmp_path / "results", training=training)).count("completed") == 32


def test_a_study_without_results_is_all_missing(tmp_path: Path) -> None:
    collected = collect(parse_study(study_content()), StudyPaths("fake", tmp_path))
    assert collected.count("missing") == 32
    assert {t.status for t in collected.tunings} == {"missing"}


def test_T6_names_that_look_like_no_number_survive_the_csv_file(tmp_path: Path) -> None:
    """An entry may be called `nan` or `null`: its rows stay, under its name."""
    optimizers = {name: {"optimizer": "adamw", "values": {"lr": 1e-3}} for name in ("nan", "null", "na")}
    study = fake_study(tmp_path / "results", optimizers=optimizers, seeds=[0])
    study.remove(optimizer="nan")
    write_runs(gather(study).runs, tmp_path / "tables" / "runs.csv")
    read = pd.read_csv(tmp_path / "tables" / "runs.csv", keep_default_na=False)
    assert read["optimizer"].value_counts().to_dict() == {"nan": 8, "null": 8, "na": 8}
    assert read.query("status == 'missing'")[["optimizer", "val_ppl"]].to_numpy().tolist() == [["nan", ""]]
