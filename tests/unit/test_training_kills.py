"""Killed anywhere, a run ends as if nothing had happened: weights, metrics, summary and batches (D6, O3), bit for bit.

A training is a forked child that stops at a place, says so through a pipe and waits; the parent kills it with SIGKILL
on reading that. No sleeps, no guesses about timing. Which places, and the how-manieth visit to them, is a seeded list.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from training_ranks import in_group, train_on
from training_runs import assert_same_run, make_data, make_run, metrics_of, summary_of, train

from mpadam.data import TrainBatches
from mpadam.training import checkpoint, loop, run, session
from mpadam.training.metrics import MetricsFile

Announce = Callable[[], None]
STEPS, SAVE_EVERY, KILLS = 20, 2, 20


@dataclass(frozen=True)
class Place:
    """A function that training calls, and where around the call the process is killed.

    when: "before", "after", or a function that does half of the work in place of the call.
    visits: the kill comes at one of the first so many calls of an attempt.
    """

    owner: Any
    name: str
    when: Any
    visits: int = 1


def half_a_state(original: Any, state: Any, file: Any) -> None:
    whole = io.BytesIO()
    original(state, whole)
    file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
    file.flush()


def half_a_line(_original: Any, metrics: MetricsFile, _record: Any) -> None:
    metrics._file.write(b'{"step": 7, "posi')
    metrics._file.flush()


def half_a_deletion(_original: Any, root: Path, **_: Any) -> None:
    for path in checkpoint.step_folders(root)[: -checkpoint.KEPT]:
        (path / "state.pt").unlink(missing_ok=True)


SAVE = {
    "before a save": Place(checkpoint, "save", "before", 3),
    "half a state written": Place(torch, "save", half_a_state, 3),
    "state written, not on disk": Place(os, "fsync", "before", 3),
    "state on disk, no manifest": Place(checkpoint, "write_json", "before", 3),
    "manifest written, not renamed": Place(checkpoint, "write_json", "after", 3),
    "renamed, older ones still there": Place(checkpoint, "retain", "before", 3),
    "an older one half deleted": Place(checkpoint, "retain", half_a_deletion, 2),
    "older ones deleted": Place(checkpoint, "retain", "after", 3),
}
STEP = {
    "before a backward pass": Place(loop, "backward", "before", 4),
    "before an update": Place(loop, "update", "before", 4),
    "after an update": Place(loop, "update", "after", 4),
    "half a line of metrics": Place(MetricsFile, "append", half_a_line, 4),
    "a line of metrics past the checkpoint": Place(MetricsFile, "append", "after", 5),
    "in a validation": Place(loop, "evaluate", "before", 1),
    "run taken, nothing loaded": Place(run, "claim", "after"),
    "state loaded, no step yet": Place(session, "_note_world_size", "after"),
    "metrics cut back, no step yet": Place(MetricsFile, "__init__", "after"),
}
END = {
    "all steps done, nothing of it kept": Place(run, "_finish", "before"),
    "final weights kept, no result yet": Place(run, "write_json", "before"),
    "result kept, no summary yet": Place(run, "write_json", "after"),
}
PLACES = SAVE | STEP | END

# rules x write-backs x formats, with and without gradient accumulation
RUNS: list[dict[str, Any]] = [
    {"name": "m-plus-adam-sr", "micro_batch_size": 4},
    {"name": "adamw-kahan", "values": {"lr": 3e-3}},
    {"name": "m-plus-adam-relative-sr", "masters": "fp8", "compute": "fp8", "micro_batch_size": 2},
    {"name": "madam-sr", "masters": "nvfp4", "values": {"lr": 1e-2}},
    {"name": "m-plus-adam-apollo-e", "masters": "fp32", "state_dtype": "fp32", "compute": "fp8"},
]


def drawn_kills() -> list[list[tuple[str, int]]]:
    """For each run its kills, in their order; those of the end come last."""
    draw = random.Random(2607)
    names = list(PLACES)
    draw.shuffle(names)
    kills = [(name, draw.randint(1, PLACES[name].visits)) for name in names]
    return [sorted(kills[i :: len(RUNS)], key=lambda kill: kill[0] in END) for i in range(len(RUNS))]


def wait_at(place: Place, visit: int, announce: Announce) -> None:
    """In a child: from now on, the `visit`-th call of the place announces itself and never returns."""
    original, calls = getattr(place.owner, place.name), 0

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != visit:
            return original(*args, **kwargs)
        if place.when == "after":
            original(*args, **kwargs)
        elif place.when != "before":
            place.when(original, *args, **kwargs)
        announce()

    setattr(place.owner, place.name, watched)


def log_batches(path: Path) -> None:
    """In a child: note step and hash of every batch that is read (case D6)."""
    original = TrainBatches.batch

    def logged(self: TrainBatches, step: int, rows: slice = slice(None)) -> Any:
        batch = original(self, step, rows)
        with path.open("a") as file:
            file.write(f"{step} {hashlib.sha256(batch.input_ids.tobytes()).hexdigest()}\n")
        return batch

    TrainBatches.batch = logged  # type: ignore[method-assign]


def killed(folder: Path, place: Place, visit: int, *, batches: Path | None = None, size: int = 1, at: int = 0) -> None:
    """Train in `size` processes until that of rank `at` comes to the place; then kill all of them."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as meeting:
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                if batches is not None:
                    log_batches(batches)
                if rank == at:
                    wait_at(place, visit, lambda: (os.write(writing, b"!"), signal.pause()))
                in_group(rank, size, Path(meeting) / "store", lambda ranks: train_on(ranks, folder))
                os._exit(1)  # it never came there
            children.append(child)
        os.close(writing)
        announced = os.read(reading, 1)
        os.close(reading)
        for child in children:
            os.kill(child, signal.SIGKILL)
        ends = [os.waitpid(child, 0)[1] for child in children]
    assert announced == b"!", "training ended before it came to the place"
    assert all(os.WIFSIGNALED(status) for status in ends)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """So little text that twenty steps pass its end more than once."""
    data = make_data(tmp_path_factory.mktemp("data"), documents_per_split=(20, 60))
    batches = TrainBatches(data, sequences="pack", sequence_length=32, global_batch_size=8, seed=0)
    assert 2 * batches.sequences < 8 * STEPS
    return data


@pytest.mark.parametrize("number", range(len(RUNS)), ids=[f"{r['name']}-{r.get('masters', 'bf16')}" for r in RUNS])
def test_d6_o3_twenty_kills_change_nothing(number: int, tmp_path: Path, data: Any) -> None:
    options: dict[str, Any] = {"steps": STEPS, "checkpoint_every": SAVE_EVERY, **RUNS[number]}
    whole, pieces = make_run(tmp_path / "whole", data, **options), make_run(tmp_path / "pieces", data, **options)
    assert train(whole) == 0
    log = tmp_path / "batches"
    for name, visit in drawn_kills()[number]:
        killed(pieces, PLACES[name], visit, batches=log)
        assert not (pieces / "summary.json").exists(), name
    assert train(pieces) == 0
    assert_same_run(pieces, whole)
    assert [line["step"] for line in metrics_of(pieces)] == list(range(1, STEPS + 1))
    assert {path.name for path in (pieces / "checkpoints").iterdir()} == {"final", "result.json", "spec.json"}
    assert not [path for path in pieces.iterdir() if path.name.startswith((".", "train.lock"))]

    read = {tuple(line.split()) for line in log.read_text().splitlines()}
    assert len(read) == len({step for step, _ in read})  # a step that was done again read the same batch again
    expected = TrainBatches(
        data, sequences="pack", sequence_length=32, global_batch_size=8, seed=session.stream_seed(0, "data-order")
    )
    for step, digest in read:
        assert digest == hashlib.sha256(expected.batch(int(step)).input_ids.tobytes()).hexdigest()


def test_the_list_of_kills_is_the_same_each_time_and_names_every_place() -> None:
    names = [name for kills in drawn_kills() for name, _ in kills]
    assert sorted(names) == sorted(PLACES)
    assert len(names) == KILLS
    assert drawn_kills() == drawn_kills()


def test_killed_with_the_summary_written_but_the_checkpoints_still_there(tmp_path: Path, data: Any) -> None:
    """Snakemake deletes the summary of a job that was killed; the run is finished all the same, and says so at once."""
    folder = make_run(tmp_path / "run", data, steps=4, checkpoint_every=2)
    killed(folder, Place(checkpoint, "retain", "before"), 2)  # after one save: the one that ends the run
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    assert train(folder) == 0
    assert (folder / "summary.json").read_bytes() == summary
    assert "nothing to train" in (folder / "train.log").read_text()


def test_two_ranks_killed_on_either_side_change_nothing(tmp_path: Path, data: Any) -> None:
    options: dict[str, Any] = {
        "steps": 8, "checkpoint_every": 2, "name": "m-plus-adam-sr", "masters": "fp8", "compute": "fp8",
        "micro_batch_size": 2,
    }  # fmt: skip
    whole, pieces = make_run(tmp_path / "whole", data, **options), make_run(tmp_path / "pieces", data, **options)
    killed(pieces, SAVE["half a state written"], 2, size=2, at=0)
    killed(pieces, STEP["after an update"], 3, size=2, at=1)
    from training_ranks import run_ranks

    for folder in (whole, pieces):
        assert run_ranks(2, lambda ranks, folder=folder: train_on(ranks, folder)) == [0, 0]
    assert_same_run(pieces, whole)
    assert summary_of(pieces)["world_sizes"] == [2]
