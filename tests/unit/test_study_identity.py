"""A specification that is written again keeps the run that training began, unless its numbers could change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mpadam.canonical import canonical_json
from mpadam.cli import main
from mpadam.study import auto
from mpadam.study.config import RegimeConfig
from mpadam.study.grid import RunKey
from mpadam.study.load import load_study
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import read_run_file, run_request
from mpadam.training.folder import claim

ROOT = Path(__file__).parents[2]
MANIFEST = {"fingerprint": "f", "tokenizer_fingerprint": "t", "vocab_size": 768, "train_sequences": 100_000}
KEY = RunKey("200k", 1, "bf16-bf16", "adamw", 0)


@pytest.fixture
def write(tmp_path):
    """Write run.yaml of a run of the smoke study, as the workflow's rule does; returns what is in it."""
    config = load_study([ROOT / "config.yaml", ROOT / "studies/smoke.yaml"])
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text(json.dumps(MANIFEST))
    folder = tmp_path / "run"

    def run(**changes):
        request = run_request(config, KEY)
        request["training"].update(changes)
        request["values"] = {"lr": 4e-3}
        paths = ["--manifest", str(tmp_path / "data/manifest.json"), "--out", str(folder / "run.yaml")]
        (folder / "run.yaml").unlink(missing_ok=True)  # as Snakemake does before the job
        assert main(["spec", "--request", canonical_json(request), *paths]) == 0
        return read_run_file(folder / "run.yaml")

    run.folder = RunFolder(folder)
    return run


@pytest.mark.parametrize("route", ["native", "float32", None])
def test_another_processor_keeps_the_route_that_training_began_with(route, write, monkeypatch):
    """None: a run from before the field."""
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: route == "native")
    begun = write()
    if route is None:
        training = begun.spec.training.model_copy(update={"bf16_products": None})
        begun = begun.model_copy(update={"spec": begun.spec.model_copy(update={"training": training})})
    claim(write.folder, begun, replace=False)
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: route != "native")
    again = write(plot_every=500)  # changes no number
    assert again.spec.hash == begun.spec.hash
    assert again.spec.training.bf16_products == route
    assert again.plot_every == 500


def test_a_finished_run_of_which_only_results_were_kept_says_what_auto_meant(write, monkeypatch):
    """`mpadam keep` leaves checkpoints behind: the example's runs were all trained again after a copy."""
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: True)
    begun = write()
    summary = {"hash": begun.spec.hash, "spec": begun.spec.model_dump(mode="json")}
    write.folder.summary.write_text(json.dumps(summary))
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: False)
    assert write().spec.hash == begun.spec.hash


def test_what_changes_the_numbers_makes_another_run_with_what_auto_means_now(write, monkeypatch):
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: True)
    begun = write()
    claim(write.folder, begun, replace=False)
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: False)
    again = write(clip_norm=0.5)
    assert again.spec.hash != begun.spec.hash
    assert again.spec.training.bf16_products == "float32"
    assert write(bf16_products="float32").spec.hash != begun.spec.hash  # named by the configuration


def test_nothing_is_kept_where_nothing_was_trained(write, monkeypatch):
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: True)
    write()
    monkeypatch.setattr(auto, "remembered_native_bf16_products", lambda: False)
    assert write().spec.training.bf16_products == "float32"


@pytest.mark.parametrize(
    ("regime", "optimizer", "version"),
    [
        ("bf16-bf16", "adamw-sr", None),
        ("nvfp4-bf16", "adamw", None),
        ("nvfp4-bf16", "adamw-sr", 2),
        ("fp8-fp8", "m-plus-adam-sr", 2),
    ],
)
def test_a_raised_numerics_version_asks_for_the_runs_again_whose_numbers_changed(regime, optimizer, version):
    """The first version is not in the request, so that the runs of before are not asked for again."""
    config = load_study([ROOT / "config.yaml", ROOT / "studies/smoke.yaml"])
    request = run_request(config, replace(KEY, regime=regime, optimizer=optimizer))
    assert request.get("numerics_version") == version


def test_a_carry_as_it_always_was_changes_no_specification():
    """`regimes.*.carry_dtype` came later: runs with the bf16 carry of before keep their hash."""
    assert "carry_dtype" not in RegimeConfig(masters="nvfp4", compute="bf16").model_dump(mode="json")
    finer = RegimeConfig(masters="nvfp4", compute="bf16", carry_dtype="fp32")
    assert finer.model_dump(mode="json")["carry_dtype"] == "fp32"
