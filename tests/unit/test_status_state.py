"""The state of a run folder, from its files as training leaves them at every stage, whole or torn."""

import json
import os
import socket
from pathlib import Path

import pytest

from mpadam.status.report import State, eta_seconds, read_state
from mpadam.study.auto import Auto
from mpadam.study.grid import RunKey
from mpadam.study.load import load_study
from mpadam.study.run_folder import RunFolder, read_run
from mpadam.study.spec import resolve, run_request, write_run_file
from mpadam.training.lock import STALE_SECONDS, RunLock

ROOT = Path(__file__).parents[2]
MANIFEST = {"fingerprint": "f", "tokenizer_fingerprint": "t", "vocab_size": 1024, "train_sequences": 10_000}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder with nothing but its run.yaml, of 160 steps."""
    config = load_study([ROOT / "config.yaml", ROOT / "studies/smoke.yaml"])
    request = run_request(config, RunKey("400k", 2, "bf16-bf16", "m-plus-adam", 1))
    rates = {"lr": 1e-3, "lr_mult": 3e-3}
    run = resolve(request, manifest=MANIFEST, selected=rates, data="d", auto=Auto(compile=False))
    write_run_file(tmp_path / "run.yaml", run)
    return RunFolder(tmp_path)


def run_hash(folder: RunFolder) -> str | None:
    return read_run(folder.run_file)[0]


def log_steps(folder: RunFolder, *steps: int) -> None:
    """Metrics of 1,000 target tokens per step, at 500 tokens per second."""
    records = [{"step": s, "target_tokens": 1000 * s, "loss": 10 - s / 100, "tokens_per_s": 500.0} for s in steps]
    folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def summarise(folder: RunFolder, **changes: object) -> None:
    content = {"hash": run_hash(folder), "status": "completed", "steps": 160, "val_loss": 3.25, "train_loss": 3.5}
    folder.summary.write_text(json.dumps({**content, **changes}))


def lock(folder: RunFolder, **holder: object) -> None:
    folder.lock.write_text(
        json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "process_start": "0"} | holder)
    )


# --- states ----------------------------------------------------------------------------------------------------------


def test_a_folder_that_does_not_exist_waits(tmp_path: Path) -> None:
    assert read_state(tmp_path / "none") == State("waiting")


def test_a_run_that_has_not_begun_waits_for_its_steps(folder: RunFolder) -> None:
    assert read_state(folder.path) == State("waiting", steps=160)


def test_hash_and_steps_are_those_that_the_run_file_says(folder: RunFolder) -> None:
    from mpadam.study.spec import read_run_file

    run = read_run_file(folder.run_file)
    assert read_run(folder.run_file) == (run.spec.hash, run.spec.training.steps) == (run.spec.hash, 160)


def test_a_run_under_way_shows_step_loss_and_time_left(folder: RunFolder) -> None:
    log_steps(folder, 10, 20, 30)
    with RunLock(folder.lock):
        state = read_state(folder.path)
    assert (state.state, state.step, state.steps, state.loss) == ("running", 30, 160, 9.7)
    assert state.eta_seconds == pytest.approx(130 * 2.0), "2 s per step"
    assert f"process {os.getpid()} on {socket.gethostname()}" in state.note


def test_a_run_that_has_just_begun_is_at_step_0(folder: RunFolder) -> None:
    with RunLock(folder.lock):
        state = read_state(folder.path)
    assert (state.state, state.step, state.steps, state.eta_seconds) == ("running", 0, 160, None)


def test_a_line_that_is_being_written_is_not_read(folder: RunFolder) -> None:
    log_steps(folder, 10, 20, 30)
    whole = folder.metrics.read_bytes()
    with RunLock(folder.lock):
        for cut in range(1, 40):
            folder.metrics.write_bytes(whole[:-cut])
            assert read_state(folder.path).step == 20, cut


def test_a_lock_whose_holder_is_dead_is_stale(folder: RunFolder) -> None:
    log_steps(folder, 10)
    lock(folder, job="4711")
    state = read_state(folder.path)
    assert (state.state, state.step) == ("stale", 10)
    assert "Slurm job 4711 is gone" in state.note


@pytest.mark.parametrize(("age", "expected"), [(STALE_SECONDS / 2, "running"), (2 * STALE_SECONDS, "stale")])
def test_on_another_host_the_heartbeat_decides(folder: RunFolder, age: float, expected: str) -> None:
    lock(folder, host="another.example")
    touched = folder.lock.stat().st_mtime - age
    os.utime(folder.lock, (touched, touched))
    assert read_state(folder.path).state == expected


def test_a_run_that_stopped_in_time_waits_to_go_on(folder: RunFolder) -> None:
    log_steps(folder, 10, 20)
    folder.log.write_text("step 20/160\nstopped after step 23 (time is up): the same command continues from there\n")
    state = read_state(folder.path)
    assert (state.state, state.step) == ("stopped", 20)
    assert "time is up" in state.note


def test_a_finished_run_is_done_even_while_it_is_asked_for_again(folder: RunFolder) -> None:
    log_steps(folder, 160)
    summarise(folder)
    assert read_state(folder.path) == State("done", step=160, steps=160, loss=3.25)
    with RunLock(folder.lock):
        assert read_state(folder.path).state == "done"


def test_a_diverged_run_says_where_and_why(folder: RunFolder) -> None:
    diverged = {"step": 41, "reason": "loss nan", "last_finite_loss": 7.5}
    summarise(folder, status="diverged", steps=40, val_loss=None, train_loss=7.5, diverged=diverged)
    assert read_state(folder.path) == State("diverged", step=40, steps=160, loss=7.5, note="step 41: loss nan")


def test_a_run_that_cannot_succeed_is_failed_with_its_error(folder: RunFolder) -> None:
    folder.failure.write_text(json.dumps({"hash": run_hash(folder), "error": "data.fingerprint is x,\nexpected y"}))
    state = read_state(folder.path)
    assert (state.state, state.note) == ("failed", "data.fingerprint is x, expected y")


# --- files of other runs, and broken ones ----------------------------------------------------------------------------


def test_files_of_another_run_say_nothing_about_this_one(folder: RunFolder) -> None:
    summarise(folder, hash="of the run before")
    folder.failure.write_text(json.dumps({"hash": "of the run before", "error": "long ago"}))
    assert read_state(folder.path).state == "waiting"


def test_a_summary_without_its_run_file_is_not_a_result(folder: RunFolder) -> None:
    summarise(folder)
    folder.run_file.unlink()
    assert read_state(folder.path).state == "waiting"


@pytest.mark.parametrize(
    "name", ["run.yaml", "summary.json", "failure.json", "metrics.jsonl", "train.lock", "train.log"]
)
@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[1]", b"\xff\xfe\x00", b'{"hash": 1, "pid": "x"}\n'])
def test_no_torn_file_breaks_the_reading(folder: RunFolder, name: str, content: bytes) -> None:
    log_steps(folder, 10, 20)
    summarise(folder)
    lock(folder)
    (folder.path / name).write_bytes(content)
    state = read_state(folder.path)
    assert state.state in ("done", "stale", "running", "stopped")
    json.dumps(vars(state), allow_nan=False)


def test_numbers_that_are_none_are_left_out(folder: RunFolder) -> None:
    folder.metrics.write_text('{"step": "x", "loss": NaN}\n')
    state = read_state(folder.path)
    assert (state.step, state.loss) == (None, None)


# --- time left -------------------------------------------------------------------------------------------------------


def record(step: int, rate: float) -> dict[str, float]:
    return {"step": step, "target_tokens": 1000 * step, "tokens_per_s": rate}


@pytest.mark.parametrize(
    ("records", "steps", "expected"),
    [
        ([], 100, None),
        ([record(1, 100.0)], 101, 1000.0),  # 10 s per step, 100 to go
        ([record(7, 100.0)], 101, None),  # the step before it is not in sight
        ([record(10, 1.0), record(20, 1000.0)], 120, 100.0),  # the first record's own speed is of steps out of sight
        ([record(10, 1.0), record(20, 1000.0), record(30, 500.0)], 130, 150.0),  # 30 s for 20 steps
        ([record(10, 1.0), {"step": 15}, record(20, 1000.0)], 120, 100.0),
        ([record(10, 1.0), record(20, 0.0)], 120, None),
        ([record(100, 1.0), record(110, 1000.0)], 110, 0.0),
        ([record(10, 1.0), record(20, 1000.0)], None, None),
    ],
)
def test_time_left_follows_from_the_last_logged_steps(records: list, steps: int | None, expected: float | None) -> None:
    found = eta_seconds(records, steps)
    assert found == (None if expected is None else pytest.approx(expected))
