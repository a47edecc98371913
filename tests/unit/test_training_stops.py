"""What ends an attempt and leaves the run for later: signals to a process, a full disk, a lock that was lost (T4)."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys

import pytest
import torch
from training_runs import StopAfter, assert_same_run, make_data, make_run, metrics_of, train

from mpadam.atomic import write_json
from mpadam.cli import main
from mpadam.data import TokenData
from mpadam.study.spec import read_run_file
from mpadam.training import checkpoint, evaluation, loop, run, stopping
from mpadam.training.folder import RefusedError
from mpadam.training.metrics import MetricsFile
from mpadam.training.stopping import EndedAtOnceError, Stopper


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, data):
    folder = make_run(tmp_path_factory.mktemp("whole"), data)
    assert train(folder) == 0
    return folder


def command(*arguments):
    """`mpadam` in this process; torch's determinism switch is left as it was."""
    before = torch.are_deterministic_algorithms_enabled()
    try:
        return main([str(argument) for argument in arguments])
    finally:
        torch.use_deterministic_algorithms(before)


# --- signals ---------------------------------------------------------------------------------------------------------


class Child:
    """`mpadam train` in a process of its own that says when it is in an update, and goes on when it is told to.

    place: a function of `module` to stop in, instead of the update. before: called first in the process.
    """

    def __init__(self, *folders, module=loop, place="update", before=lambda: None):
        said, self._saying = os.pipe()
        self._going, go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            before()
            self._watch(module, place)
            os._exit(main(["train", "--run-dir", *map(str, folders)]))
        os.close(self._saying)
        os.close(self._going)
        self._said, self._go = said, go

    def _watch(self, module, place):
        original = getattr(module, place)

        def watched(*args, **options):
            os.write(self._saying, b".")
            os.read(self._going, 1)
            return original(*args, **options)

        setattr(module, place, watched)

    def updates(self, count):
        """Let the child begin `count` updates; it is inside the last of them when this returns."""
        for number in range(count):
            assert os.read(self._said, 1) == b"."
            if number < count - 1:
                os.write(self._go, b".")

    def end(self):
        """Let it go on to its end; returns the exit code."""
        os.write(self._go, b"." * 100)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_process_lets_the_step_finish_is_saved_and_ends_with_75(tmp_path, data, uninterrupted, number):
    """Twice over, and the signal twice each time, as schedulers send it."""
    folder = make_run(tmp_path / "run", data, checkpoint_every=1000)
    for before, updates in ((0, 4), (4, 3)):
        child = Child(folder)
        child.updates(updates)
        os.kill(child.pid, number)
        os.kill(child.pid, number)
        assert child.end() == 75
        assert [line["step"] for line in metrics_of(folder)] == list(range(1, before + updates + 1))
        assert f"signal {number.name}" in (folder / "train.log").read_text().splitlines()[-1]
        assert not (folder / "train.lock").exists()
    assert train(folder) == 0
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGXCPU", "SIGALRM", "SIGPWR"])
def test_n24_every_signal_that_asks_to_end_saves_the_step_and_ends_with_75(tmp_path, data, name):
    if not hasattr(signal, name):
        pytest.skip(f"this system has no {name}")
    folder = make_run(tmp_path / "run", data, checkpoint_every=1000, steps=3, evaluate_every=None)
    child = Child(folder)
    child.updates(2)
    os.kill(child.pid, signal.Signals[name])
    assert child.end() == 75
    assert [path.name for path in (folder / "checkpoints").glob("step*")] == ["step00000002"]
    assert f"stopped after step 2 (signal {name})" in (folder / "train.log").read_text()


PLACES = {
    "before the data are opened": (TokenData, "open", 0),
    "in an evaluation": (loop, "evaluate", 5),  # after which the step is saved
    "in a save": (checkpoint, "save", 6),  # the next step is finished and saved too
}


@pytest.mark.parametrize("where", PLACES)
def test_n24_a_signal_at_any_other_time_costs_nothing_either(tmp_path, data, where, uninterrupted):
    module, place, step = PLACES[where]
    folder = make_run(tmp_path / "run", data)
    child = Child(folder, module=module, place=place)
    child.updates(1)
    os.kill(child.pid, signal.SIGINT)
    assert child.end() == 75
    assert f"stopped after step {step} (signal SIGINT)" in (folder / "train.log").read_text()
    assert not (folder / "train.lock").exists()
    assert train(folder) == 0
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize("step", [5, 10])
def test_n24_a_signal_does_not_wait_for_the_end_of_an_evaluation(tmp_path, data, uninterrupted, monkeypatch, step):
    """Not even of the last one, nor of one that the attempt begins with."""
    folder = make_run(tmp_path / "run", data, checkpoint_every=1000)
    nll, seen = evaluation.token_nll, []

    def signalled(*args, **options):
        seen.append(len(seen))
        if len(seen) == 2:
            signal.raise_signal(signal.SIGTERM)
        return nll(*args, **options)

    assert step == 5 or train(folder, stop=StopAfter(9)) == 75
    monkeypatch.setattr(evaluation, "token_nll", signalled)
    for _ in range(2):
        seen.clear()
        with Stopper() as stop:
            assert train(folder, stop=stop) == 75
        assert len(seen) == 2
        assert f"stopped after step {step} (signal SIGTERM)" in (folder / "train.log").read_text().splitlines()[-1]
    monkeypatch.undo()
    assert train(folder) == 0
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_n24_what_fails_after_a_signal_is_left_for_later(tmp_path, uninterrupted, monkeypatch, capsys, kind):
    """A terminal sends it to the whole group: the compiler died of it, and the advice was `compile: false`, code 2."""
    data = TokenData.open((uninterrupted / read_run_file(uninterrupted / "run.yaml").data).resolve())
    folder = make_run(tmp_path / "run", data, checkpoint_every=4)
    update = loop.update

    def compiled(session, gradients):
        if gradients.step == 6:
            signal.raise_signal(signal.SIGINT)
            raise kind("C++ compile error")
        update(session, gradients)

    monkeypatch.setattr(loop, "update", compiled)
    assert command("train", "--run-dir", folder) == 75
    assert "C++ compile error; signal SIGINT, then the same command" in capsys.readouterr().err.splitlines()[-1]
    assert not (folder / "failure.json").exists()
    monkeypatch.undo()
    assert command("train", "--run-dir", folder) == 0
    assert_same_run(folder, uninterrupted)


def test_n24_a_signal_between_two_runs_of_one_process_leaves_the_second_for_later(tmp_path, data):
    folders = [make_run(tmp_path / name, data, steps=1) for name in ("a", "b")]
    child = Child(*folders, module=run, place="_finish")
    child.updates(1)
    os.kill(child.pid, signal.SIGINT)
    assert child.end() == 75
    assert (folders[0] / "summary.json").exists()
    assert not (folders[1] / "metrics.jsonl").exists()


def test_n24_a_second_signal_ends_at_once(tmp_path, data, monkeypatch):
    folder = make_run(tmp_path / "run", data, checkpoint_every=1)
    monkeypatch.setitem(stopping.REPEATED_SECONDS, signal.SIGINT, 0.0)  # however soon it comes
    update = loop.update

    def interrupted(session, gradients):
        if gradients.step == 3:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
        update(session, gradients)

    monkeypatch.setattr(loop, "update", interrupted)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        assert main(["train", "--run-dir", str(folder)]) == 130
    finally:
        torch.use_deterministic_algorithms(before)
    assert "a second SIGINT" in (folder / "train.log").read_text().splitlines()[-1]
    assert {path.name for path in (folder / "checkpoints").glob("step*")} == {"step00000001", "step00000002"}
    assert not (folder / "train.lock").exists()


def test_n24_only_the_same_request_made_again_counts_as_a_second_one(monkeypatch):
    """Slurm warns by USR1 and then sends TERM, a container passes Ctrl-C on, the kernel repeats XCPU each second."""
    clock = iter([0.0, 0.1, 0.2, 120.0, 121.0, 240.0, 241.0, 250.0, 251.0])
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(clock))
    with Stopper() as stop:
        for name in ("SIGINT", "SIGINT", "SIGUSR1", "SIGTERM", "SIGTERM", "SIGUSR1", "SIGXCPU", "SIGXCPU"):
            signal.raise_signal(signal.Signals[name])
        assert stop.reason == "signal SIGINT"
        with pytest.raises(EndedAtOnceError):
            signal.raise_signal(signal.SIGINT)


def test_n24_signals_that_were_ignored_at_start_stay_ignored(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=3, evaluate_every=None)
    child = Child(folder, before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # what nohup does
    child.updates(2)
    os.kill(child.pid, signal.SIGHUP)
    assert child.end() == 0


def test_n24_signals_that_were_blocked_at_start_are_seen(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=3, evaluate_every=None)
    child = Child(folder, before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))
    child.updates(2)
    os.kill(child.pid, signal.SIGTERM)
    assert child.end() == 75
    assert [path.name for path in (folder / "checkpoints").glob("step*")] == ["step00000002"]


def test_n24_a_terminal_that_was_closed_does_not_keep_the_step_from_being_saved(tmp_path, data):
    """SIGHUP comes with it, and every write to it fails."""
    folder = make_run(tmp_path / "run", data, checkpoint_every=1000, steps=3, evaluate_every=None)
    master, terminal = os.openpty()

    def on_terminal():
        os.dup2(terminal, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        os.close(master)
        os.close(terminal)

    child = Child(folder, before=on_terminal)
    os.close(terminal)
    child.updates(2)
    os.close(master)
    os.kill(child.pid, signal.SIGHUP)
    assert child.end() == 75
    assert [path.name for path in (folder / "checkpoints").glob("step*")] == ["step00000002"]


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs; the injected errors are tested anyway")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_t4_a_full_disk_leaves_the_checkpoint_before_and_says_so(small_disk, data, uninterrupted, capsys):
    folder = make_run(small_disk / "run", data)
    assert train(folder, stop=StopAfter(3)) == 75
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - 200_000))  # room for records, not for a state
    assert command("train", "--run-dir", folder) == 75
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("mpadam train: ")
    assert "No space left on device" in message
    assert "step00000005 could not be saved" in message
    assert "step00000003 is as it was" in message
    assert "make room, then the same command continues" in message
    assert "No space left" in (folder / "train.log").read_text()
    assert not (folder / "failure.json").exists()
    assert [path.name for path in (folder / "checkpoints").glob("*step*")] == ["step00000003"]
    filler.unlink()
    assert command("train", "--run-dir", folder) == 0
    assert_same_run(folder, uninterrupted)


FULL = {
    "state": (torch, "save", 2),
    "manifest": (checkpoint, "write_json", 2),
    "a line of metrics": (MetricsFile, "append", 7),
    "final state": (torch, "save", 3),
}


FAULTS = [*((where, errno.ENOSPC) for where in FULL), ("state", errno.EDQUOT), ("a line of metrics", errno.EFBIG)]


@pytest.mark.parametrize("fault", FAULTS)
def test_t4_a_full_disk_or_quota_is_code_75_and_costs_nothing(fault, tmp_path, uninterrupted, monkeypatch, capsys):
    where, code = fault
    data = TokenData.open((uninterrupted / read_run_file(uninterrupted / "run.yaml").data).resolve())
    folder = make_run(tmp_path / "run", data, checkpoint_every=4)
    owner, name, count = FULL[where]
    original, calls = getattr(owner, name), []

    def full(*args, **kwargs):
        calls.append(1)
        if len(calls) == count:
            raise OSError(code, os.strerror(code))
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        assert command("train", "--run-dir", folder) == 75
    remedy = {errno.ENOSPC: "make room, then", errno.EDQUOT: "within your quota", errno.EFBIG: "ulimit -f unlimited"}[
        code
    ]
    assert remedy in capsys.readouterr().err.splitlines()[-1]
    assert os.strerror(code) in (folder / "train.log").read_text().splitlines()[-1]
    assert not (folder / "summary.json").exists()
    assert command("train", "--run-dir", folder) == 0
    assert_same_run(folder, uninterrupted)


def test_t4_a_file_that_cannot_grow_is_named(tmp_path):
    """The error of a write knows no name, and closing the file raised it once more."""
    path, (soft, hard) = tmp_path / "metrics.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    metrics = MetricsFile(path, offset=0)
    metrics.append({"step": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 3, hard))
    try:
        with pytest.raises(OSError, match="File too large") as appended:
            metrics.append({"step": 2})
        metrics.close()
        with pytest.raises(OSError, match="File too large") as written:
            write_json(tmp_path / "summary.json", {"status": "completed"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [appended.value.filename, written.value.filename] == [str(path), str(tmp_path / "summary.json")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_other_faults_of_the_disk_are_not_called_full(tmp_path, data, monkeypatch, capsys):
    folder = make_run(tmp_path / "run", data)

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        assert command("train", "--run-dir", folder) == 2
    assert "make room" not in capsys.readouterr().err
    assert command("train", "--run-dir", folder) == 0


# --- a lock that was lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["update", "validate"])
def test_who_lost_the_lock_writes_no_more(tmp_path, data, monkeypatch, place):
    """Cut off for more than five minutes, this process goes on while another host has taken the run over."""
    folder = make_run(tmp_path / "run", data, checkpoint_every=2)
    original = getattr(loop, place)

    def cut_off(session, *rest):
        result = original(session, *rest)
        if session.progress.step == 5:
            (folder / "train.lock").write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": "now"}))
        return result

    monkeypatch.setattr(loop, place, cut_off)
    with pytest.raises(RefusedError, match=r"taken away.*process 1 on elsewhere"):
        train(folder)
    last = {"update": 4, "validate": 5}[place]
    assert [line["step"] for line in metrics_of(folder)] == list(range(1, last + 1))
    assert sorted(path.name for path in (folder / "checkpoints").glob("step*")) == ["step00000002", "step00000004"]
    assert json.loads((folder / "train.lock").read_text())["host"] == "elsewhere"
    assert not (folder / "summary.json").exists()
