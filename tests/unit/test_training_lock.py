"""One writer a run folder: who holds it, who is dead, and what a second writer is told."""

import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from training_runs import make_data, make_run

from mpadam.cli import main
from mpadam.training import lock as locks
from mpadam.training.folder import RefusedError
from mpadam.training.lock import RunLock, is_held


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def holder(path, **changes):
    content = {"host": socket.gethostname(), "pid": os.getpid(), "job": None, "since": "then"}
    content["process_start"] = locks._process_start(content["pid"])
    path.write_text(json.dumps({**content, **changes}))


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_second_writer_is_told_who_trains(tmp_path, data, capsys):
    folder = make_run(tmp_path / "run", data, steps=1)
    with RunLock(folder / "train.lock"):
        holder(folder / "train.lock", job="4711")
        assert main(["train", "--run-dir", str(folder)]) == 3
    message = capsys.readouterr().err
    assert f"process {os.getpid()} on {socket.gethostname()}, Slurm job 4711" in message
    assert not (folder / "metrics.jsonl").exists()


def test_the_lock_is_gone_afterwards_and_on_errors(tmp_path):
    path = tmp_path / "train.lock"
    held = []

    def fail():
        with RunLock(path):
            held.append(is_held(path))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert held == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reused", [False, True])
def test_a_dead_holder_on_this_host_does_not_count_however_fresh_its_lock(tmp_path, reused):
    path = tmp_path / "train.lock"
    if reused:
        holder(path, process_start="1")  # another process had this number
    else:
        holder(path, pid=dead_pid())
    with RunLock(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"processes_of": "another boot or container"}])
def test_another_host_or_container_counts_for_five_minutes_after_its_last_sign_of_life(tmp_path, elsewhere):
    """Its process number says nothing here: this one is dead on this host, and taken for alive."""
    path = tmp_path / "train.lock"
    holder(path, pid=dead_pid(), **elsewhere)
    last_sign = path.stat().st_mtime
    for age in (0, 299):
        with pytest.raises(RefusedError, match=str(json.loads(path.read_text())["pid"])):
            RunLock(path, clock=lambda age=age: last_sign + age).__enter__()
    with RunLock(path, clock=lambda: last_sign + 301):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_n24_a_lock_from_the_future_is_a_dead_one(tmp_path):
    """A clock that ran ahead has been set right since: the run was refused until that date. Hosts differ by less."""
    path = tmp_path / "train.lock"
    holder(path, host="elsewhere")
    there = path.stat().st_mtime
    with pytest.raises(RefusedError):
        RunLock(path, clock=lambda: there - 3600).__enter__()
    with RunLock(path, clock=lambda: there - 2 * 86_400):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_ages_are_told_by_the_clock_of_the_file_system(tmp_path, monkeypatch):
    """Ten minutes between the clocks of two hosts take no lock away."""
    path = tmp_path / "train.lock"
    holder(path, host="elsewhere")
    there = time.time()
    monkeypatch.setattr(locks.time, "time", lambda: there + 600)
    with pytest.raises(RefusedError):
        RunLock(path).__enter__()


def test_the_holder_gives_a_sign_of_life_every_thirty_seconds(tmp_path, monkeypatch):
    """Waits are answered at once by a clock of the test's own; after three of them the lock is let go."""
    waits, touched, done = [], [], threading.Event()

    class Released:
        def wait(self, seconds):
            waits.append(seconds)
            if len(waits) > 3:
                done.set()
            return len(waits) > 3

        def set(self):
            pass

    monkeypatch.setattr(locks.os, "utime", touched.append)
    lock = RunLock(tmp_path / "train.lock")
    lock._released = Released()
    with lock:
        assert done.wait(timeout=60)
    assert waits == [30.0] * 4
    assert touched == [tmp_path / "train.lock"] * 3


def test_a_holder_whose_lock_was_taken_away_neither_touches_nor_writes(tmp_path):
    path = tmp_path / "train.lock"
    with RunLock(path) as cut_off:
        cut_off.check()
        holder(path, host="elsewhere", pid=4711)
        with pytest.raises(RefusedError, match=r"taken away .* process 4711 on elsewhere"):
            cut_off.check()
        path.unlink()
        with pytest.raises(RefusedError, match="start again"):
            cut_off.check()
        holder(path, host="elsewhere", pid=4711)
    assert json.loads(path.read_text())["host"] == "elsewhere"  # leaving lets the other one's lock be


def test_a_killed_process_that_nobody_has_asked_after_is_dead(tmp_path):
    """A zombie keeps its number and its start time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        lock = RunLock(tmp_path / "train.lock")
        lock.__enter__()
        os.write(writing, b"!")
        signal.pause()
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    assert is_held(tmp_path / "train.lock")
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it is dead, and stays a zombie
    assert not is_held(tmp_path / "train.lock")
    os.waitpid(child, 0)


@pytest.mark.parametrize("pid", [None, "4711", []])
def test_n32_a_lock_that_names_no_process_counts_for_five_minutes(tmp_path, pid):
    """As another version, or half a write, may have left it."""
    path = tmp_path / "train.lock"
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": pid}))
    with pytest.raises(RefusedError):
        RunLock(path).__enter__()
    last_sign = path.stat().st_mtime
    with RunLock(path, clock=lambda: last_sign + 301):
        pass


@pytest.mark.parametrize("pid", [2**31, 2**70, -1, 0, -4711])
def test_a_lock_of_a_process_that_cannot_be_counts_as_dead(tmp_path, pid):
    path = tmp_path / "train.lock"
    holder(path, pid=pid, process_start=None)
    with RunLock(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", ["", '{"host": "else', "[]", '{"pid": null}'])
def test_a_lock_that_names_no_holder_is_said_to_name_none(tmp_path, content):
    path = tmp_path / "train.lock"
    path.write_text(content)
    with pytest.raises(RefusedError, match=r"train\.lock does not say which process .* 5 minutes after") as refused:
        RunLock(path).__enter__()
    assert "None" not in str(refused.value)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_a_lock_that_cannot_be_read_for_once_is_not_lost(tmp_path, monkeypatch, caplog, number):
    path, failing = tmp_path / "train.lock", [number]
    read = Path.read_bytes

    def unread(self):
        if failing:
            raise OSError(failing[0], os.strerror(failing.pop()))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", unread)
    with RunLock(path) as held:
        held.check()
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == f"{path} cannot be read ({os.strerror(number)}): training continues and tries again"
        held.check()
        holder(path, host="elsewhere", pid=4711)
        with pytest.raises(RefusedError, match="taken away"):
            held.check()
        failing.append(number)  # at the end, too
    assert path.exists()


def test_of_two_who_find_a_dead_holder_one_gets_the_lock(tmp_path, monkeypatch):
    """The other one links its lock in between: after this one looked, before it takes the dead lock away."""
    path = tmp_path / "train.lock"
    holder(path, pid=dead_pid())
    look = locks.is_held

    def slow_look(where, *, now):
        found = look(where, now=now)
        if where == path and not found:
            holder(path)
        return found

    monkeypatch.setattr(locks, "is_held", slow_look)
    with pytest.raises(RefusedError), RunLock(path):
        pass
    assert look(path)
    assert [p.name for p in tmp_path.iterdir()] == ["train.lock"]
