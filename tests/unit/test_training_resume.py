"""Exact resume: stopped again and again, a run ends with the same bits; and what a checkpoint has to withstand."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from training_runs import (
    StopAfter,
    assert_same_run,
    make_data,
    make_run,
    metrics_of,
    summary_of,
    train,
    weights_of,
)

from mpadam.training import checkpoint, loop
from mpadam.training.checkpoint import Progress, newest, save
from mpadam.training.stopping import Stopper

# (masters, optimizer): both kinds of master, a carry, rounding bits, a compute copy
REGIMES = [
    ("fp32", "adamw"),
    ("fp32", "m-plus-adam"),
    ("bf16", "adamw-kahan"),
    ("bf16", "m-plus-adam-sr"),
    ("bf16", "adamw-eco-sr"),
    ("bf16", "m-plus-adam-relative"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, data):
    folder = make_run(tmp_path_factory.mktemp("whole"), data, checkpoint_every=3)
    assert train(folder) == 0
    return folder


@pytest.mark.parametrize(("masters", "optimizer"), REGIMES)
def test_stopped_again_and_again(masters, optimizer, tmp_path, data):
    """Ten attempts of one update each; bits of rounding, carries and masters come through each of them."""
    changes = {"masters": masters, "name": optimizer, "state_dtype": masters, "micro_batch_size": 4}
    whole = make_run(tmp_path / "whole", data, **changes)
    pieces = make_run(tmp_path / "pieces", data, **changes)
    assert train(whole) == 0
    codes = [train(pieces, stop=StopAfter(1)) for _ in range(10)]
    assert codes == [75] * 9 + [0]
    assert_same_run(pieces, whole)
    assert summary_of(pieces)["attempts"] == 10


def test_no_time_at_all_still_makes_progress(tmp_path, data):
    folder = make_run(tmp_path / "run", data)
    assert train(folder, stop=Stopper(minutes=0)) == 75
    assert [line["step"] for line in metrics_of(folder)] == [1]


def test_a_signal_lets_the_step_finish_and_is_saved(tmp_path, data, uninterrupted, monkeypatch):
    folder = make_run(tmp_path / "run", data, checkpoint_every=3)
    good = loop.update

    def interrupted(session, gradients):
        if gradients.step == 4:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)  # schedulers may send it twice
        good(session, gradients)

    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    with monkeypatch.context() as patch, Stopper() as stop:
        patch.setattr(loop, "update", interrupted)
        assert train(folder, stop=stop) == 75
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == handlers
    assert [line["step"] for line in metrics_of(folder)] == [1, 2, 3, 4]
    assert train(folder) == 0
    assert_same_run(folder, uninterrupted)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoints_of(root: Path, steps: list[int]) -> None:
    for step in steps:
        save(root, run_hash="abc", progress=Progress(step=step), state={"model": {"w": torch.full((3,), step)}})


def test_the_last_two_are_kept(tmp_path):
    checkpoints_of(tmp_path, [1, 2, 10])
    checkpoint.retain(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step00000002", "step00000010"]
    assert newest(tmp_path, run_hash="abc").progress.step == 10


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


DAMAGE = {
    "state cut": lambda folder: cut(folder / "state.pt"),
    "a bit flipped": lambda folder: flip(folder / "state.pt"),
    "state gone": lambda folder: (folder / "state.pt").unlink(),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest torn": lambda folder: (folder / "manifest.json").write_bytes(b"{"),
    "empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_newest_checkpoint_is_passed_over(damage, tmp_path, caplog):
    checkpoints_of(tmp_path, [3, 6])
    DAMAGE[damage](tmp_path / "step00000006")
    found = newest(tmp_path, run_hash="abc")
    assert found.progress.step == 3
    assert torch.equal(found.state()["model"]["w"], torch.full((3,), 3))
    assert "step00000006" in caplog.text


def test_resume_from_the_older_checkpoint_gives_the_same_run(tmp_path, data, uninterrupted):
    folder = make_run(tmp_path / "run", data, checkpoint_every=3)
    assert train(folder, stop=StopAfter(8)) == 75
    assert sorted(path.name for path in (folder / "checkpoints").glob("step*")) == ["step00000006", "step00000008"]
    flip(folder / "checkpoints" / "step00000008" / "state.pt")
    assert train(folder) == 0
    assert "going back" in (folder / "train.log").read_text()
    assert_same_run(folder, uninterrupted)


def test_a_checkpoint_whose_metrics_are_lost_is_not_used(tmp_path, data, uninterrupted):
    folder = make_run(tmp_path / "run", data, checkpoint_every=3)
    assert train(folder, stop=StopAfter(8)) == 75
    cut(folder / "metrics.jsonl")
    assert train(folder) == 0
    assert_same_run(folder, uninterrupted)


def test_a_checkpoint_of_another_run_is_not_used(tmp_path):
    checkpoints_of(tmp_path, [3])
    assert newest(tmp_path, run_hash="xyz") is None


def test_a_failed_save_leaves_the_one_before(tmp_path, monkeypatch):
    checkpoints_of(tmp_path, [3])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints_of(tmp_path, [6])
    assert [path.name for path in tmp_path.iterdir()] == ["step00000003"]
    assert newest(tmp_path, run_hash="abc").progress.step == 3


def test_checkpoints_hold_tensors_only(tmp_path):
    """Unpickling code would run on load; `weights_only` refuses it."""
    folder = save(tmp_path, run_hash="abc", progress=Progress(step=1), state={"model": Path("code")})
    with pytest.raises(Exception, match="weights_only"):
        checkpoint.read(folder, run_hash="abc").state()


# --- same file, same bits ---------------------------------------------------------------------------------------------


def test_the_same_run_file_twice_is_the_same_run(tmp_path, data, uninterrupted):
    folder = make_run(tmp_path / "again", data, checkpoint_every=3)
    torch.manual_seed(time.time_ns() % 2**32)  # the global generators have no say
    assert train(folder) == 0
    assert_same_run(folder, uninterrupted)


def test_another_seed_is_another_run(tmp_path, data, uninterrupted):
    folder = make_run(tmp_path / "other", data, seed=1)
    assert train(folder) == 0
    assert metrics_of(folder)[0]["loss"] != metrics_of(uninterrupted)[0]["loss"]


def test_evaluating_more_often_changes_nothing_else(tmp_path, data, uninterrupted):
    folder = make_run(tmp_path / "often", data, evaluate_every=1)
    assert train(folder) == 0
    assert metrics_of(folder) == metrics_of(uninterrupted)
    assert len(summary_of(folder)["validation"]) == 10
    theirs = weights_of(uninterrupted)
    assert all(torch.equal(value, theirs[name]) for name, value in weights_of(folder).items())


def test_checkpoints_do_not_change_the_run(tmp_path, data, uninterrupted):
    folder = make_run(tmp_path / "run", data, checkpoint_every=1000)
    assert train(folder) == 0
    assert_same_run(folder, uninterrupted)
    shutil.rmtree(folder)
