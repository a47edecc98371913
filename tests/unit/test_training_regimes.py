"""Every precision regime through the trainer: it learns, resumes bitwise, and evaluates alike at any batch size."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from mpadam.data import TokenData
from mpadam.study.spec import read_run_file, write_run_file
from mpadam.training.export import evaluate_folder
from tests.unit.training_runs import StopAfter, assert_same_run, make_data, make_run, metrics_of, summary_of, train

MASTERS = ("fp32", "bf16", "fp8", "fp8e4m3", "nvfp4", "nvfp4s")
REGIMES = [(masters, compute) for masters in MASTERS for compute in ("bf16", "fp8")]
IDS = ["-".join(regime) for regime in REGIMES]
STEPS = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    return make_data(tmp_path_factory.mktemp("regimes"))


@pytest.fixture(scope="module")
def reference(data: TokenData, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Validation loss of AdamW with fp32 masters and bf16 compute."""
    folder = make_run(tmp_path_factory.mktemp("reference"), data, name="adamw", masters="fp32", steps=STEPS)
    train(folder)
    return summary_of(folder)["val_loss"]


def regime_run(folder: Path, data: TokenData, masters: str, compute: str, **changes: object) -> Path:
    state_dtype = "fp32" if masters == "fp32" else "bf16"
    return make_run(folder, data, masters=masters, compute=compute, state_dtype=state_dtype, **changes)


@pytest.mark.parametrize(("masters", "compute"), REGIMES, ids=IDS)
def test_every_regime_learns_and_resumes_bitwise(
    tmp_path: Path, data: TokenData, reference: float, masters: str, compute: str
) -> None:
    """Within half a nat of AdamW fp32-bf16 at equal steps, below the unigram entropy; stopped twice, the same bits."""
    whole, parts = (regime_run(tmp_path / name, data, masters, compute, steps=STEPS) for name in ("whole", "parts"))
    assert train(whole) == 0
    for updates in (7, 20):
        assert train(parts, stop=StopAfter(updates)) == 75
    assert train(parts) == 0
    assert_same_run(whole, parts)
    loss = summary_of(whole)["val_loss"]
    assert loss < reference + 0.5
    assert loss < data.manifest["unigram_entropy"]
    again = evaluate_folder(whole, batch_size=5)
    assert again.tokens == summary_of(whole)["val_tokens"]
    assert math.isclose(again.loss, loss, rel_tol=1e-4)


@pytest.mark.parametrize("compute", ["bf16", "fp8"])
def test_only_fp8_compute_reports_the_share_of_flushed_gradients(tmp_path: Path, data: TokenData, compute: str) -> None:
    folder = regime_run(tmp_path, data, "bf16", compute, steps=4, log_every=2)
    train(folder)
    shares = [line.get("fp8_flushed_share") for line in metrics_of(folder)]
    if compute == "bf16":
        assert set(shares) == {None}
    else:
        assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("masters", ["nvfp4", "fp8"])
def test_only_nvfp4_masters_report_the_share_of_flushed_blocks(tmp_path: Path, data: TokenData, masters: str) -> None:
    """On logged steps, counted before the step; neither that nor how often changes a number of the run."""
    folders = [
        regime_run(tmp_path / name, data, masters, "bf16", steps=4, log_every=4 if name == "rarely" else 1)
        for name in ("often", "rarely", "probed")
    ]
    run = read_run_file(folders[2] / "run.yaml")
    write_run_file(folders[2] / "run.yaml", run.model_copy(update={"probe_every": 2}))
    for folder in folders:
        train(folder)
    often, rarely, probed = map(metrics_of, folders)
    shares = [line.pop("nvfp4_flushed_share", None) for line in (*often, *probed)]
    assert all(0 <= share < 1 for share in shares) if masters == "nvfp4" else set(shares) == {None}
    assert shares[:4] == shares[4:]
    assert often == probed
    assert [line["loss"] for line in rarely] == [often[0]["loss"], often[3]["loss"]]


def test_f8_evaluating_every_step_changes_nothing(tmp_path: Path, data: TokenData) -> None:
    """F8: scales and amax histories are training's; evaluation, in FP8 or in bf16, leaves them as they are."""
    folders = {}
    for name, every, fp8_eval in (("rarely", None, False), ("often", 1, False), ("often-fp8", 1, True)):
        folders[name] = regime_run(
            tmp_path / name, data, "fp8", "fp8", steps=8, evaluate_every=every, fp8_eval=fp8_eval
        )
        train(folders[name])
    losses = {name: [line["loss"] for line in metrics_of(folder)] for name, folder in folders.items()}
    assert losses["rarely"] == losses["often"] == losses["often-fp8"]
    assert summary_of(folders["often"])["val_loss"] == summary_of(folders["rarely"])["val_loss"]
    assert summary_of(folders["often-fp8"])["val_loss"] != summary_of(folders["often"])["val_loss"]


@pytest.mark.parametrize(
    ("before", "changes", "differs"),
    [
        ({}, {"power_of_two_scale": False}, True),
        ({"power_of_two_scale": False}, {"block_size": 16}, True),
        ({}, {"block_size": 16}, False),  # a power of two moves no rounding boundary while nothing is subnormal
        ({}, {"shadow": "refreshed"}, True),
        ({}, {"shadow": "persistent", "shadow_dtype": "fp32"}, True),
        ({"name": "adamw-kahan"}, {"carry_dtype": "fp32"}, True),
        ({}, {"carry_dtype": "fp32"}, False),  # nothing is carried
        ({}, {"amax_history": 3}, False),  # an option of fp8 compute says nothing where compute is bf16
    ],
)
def test_the_options_of_fp8_masters_reach_the_numbers(
    tmp_path: Path, data: TokenData, before: dict, changes: dict, differs: bool
) -> None:
    plain = regime_run(tmp_path / "plain", data, "fp8", "bf16", steps=4, **before)
    changed = regime_run(tmp_path / "changed", data, "fp8", "bf16", steps=4, **{**before, **changes})
    for folder in (plain, changed):
        train(folder)
    assert (metrics_of(plain) != metrics_of(changed)) is differs


@pytest.mark.parametrize("changes", [{"amax_history": 1}, {"margin": 3}])
def test_the_options_of_fp8_compute_reach_the_numbers(tmp_path: Path, data: TokenData, changes: dict) -> None:
    plain = regime_run(tmp_path / "plain", data, "bf16", "fp8", steps=4)
    changed = regime_run(tmp_path / "changed", data, "bf16", "fp8", steps=4, **changes)
    for folder in (plain, changed):
        train(folder)
    assert metrics_of(plain) != metrics_of(changed)


def test_the_run_folder_lists_how_each_parameter_is_stored(tmp_path: Path, data: TokenData) -> None:
    folder = regime_run(tmp_path, data, "fp8", "fp8", steps=1)
    train(folder)
    with (folder / "weights.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    stored = {name: row["weight_format"] for name, row in rows.items()}
    assert all("fp8_e5m2" in stored[name] for name in stored if "_proj" in name)
    assert {stored[name] for name in stored if "_proj" not in name} == {"bf16"}
    assert rows["model.norm.weight"]["decays"] == "False"


def test_an_odd_model_and_an_odd_last_batch_train_in_fp8(tmp_path: Path, data: TokenData) -> None:
    """A width that 16 does not divide (as 1b's 5461), micro-batches, and a last validation batch of another size."""
    folder = regime_run(
        tmp_path,
        data,
        "nvfp4",
        "fp8",
        steps=3,
        hidden_size=36,
        intermediate_size=85,
        micro_batch_size=2,
        evaluation_batch_size=7,
    )
    assert train(folder) == 0
    assert math.isfinite(summary_of(folder)["val_loss"])


def test_what_this_machine_lacks_is_refused_before_training(tmp_path: Path, data: TokenData) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    folder = regime_run(tmp_path, data, "bf16", "fp8", fp8_backend="transformer_engine")
    with pytest.raises(ValueError, match=r"fp8_backend = 'transformer_engine'.*emulated"):
        train(folder)
    assert not (folder / "metrics.jsonl").exists()
