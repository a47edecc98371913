"""File systems that lack a call: training goes on where that is safe, and says what to do where it is not."""

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
from training_runs import assert_same_run, make_data, make_run, train

from mpadam import atomic
from mpadam.cli import main
from mpadam.data import hub
from mpadam.study.run_folder import RunFolder
from mpadam.training import checkpoint, lock
from mpadam.training.folder import RefusedError, sweep
from mpadam.training.lock import RunLock, is_held

LACKING = [errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    folder = make_run(tmp_path_factory.mktemp("whole"), data, steps=3, checkpoint_every=1, evaluate_every=None)
    assert train(folder) == 0
    return folder


@pytest.fixture(autouse=True)
def _forget_warnings():
    atomic._warn_unsynced.cache_clear()
    lock._warn_copied.cache_clear()


def lacks(number):
    """A call that the file system does not have."""

    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def folders_only(original, number):
    """The call fails for folders and works for files."""

    def call(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(number, os.strerror(number))
        return original(descriptor)

    return call


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("mpadam")]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES, errno.ENOTSUP, errno.EBADF])
def test_n30_without_fsync_of_folders_checkpoints_are_saved_with_one_warning(tmp_path, monkeypatch, caplog, number):
    monkeypatch.setattr(os, "fsync", folders_only(os.fsync, number))
    for step in (1, 2):
        checkpoint.save(tmp_path, run_hash="h", progress=checkpoint.Progress(step=step), state={})
    assert checkpoint.newest(tmp_path, run_hash="h").progress.step == 2
    (line,) = warnings(caplog)
    assert f"does not bring folders to disk when asked (fsync: {os.strerror(number)})" in line
    assert "a power failure may cost the newest checkpoint" in line


def test_n30_nothing_else_that_may_be_missing_is_needed(tmp_path, data, whole, monkeypatch):
    """No hard links, no fsync at all, no dates, no renaming of folders, no memory maps, all at once."""
    rename = Path.rename

    def files_only(self, target):
        if self.is_dir():
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", lacks(errno.ENOSYS))
    monkeypatch.setattr(os, "link", lacks(errno.EPERM))
    monkeypatch.setattr(os, "utime", lacks(errno.EPERM))
    monkeypatch.setattr(Path, "rename", files_only)
    monkeypatch.setattr(np, "memmap", lacks(errno.ENODEV))
    folder = make_run(tmp_path / "run", data, steps=3, checkpoint_every=1, evaluate_every=None)
    assert train(folder) == 0
    assert_same_run(folder, whole)
    assert not [path for path in folder.rglob("*") if path.name.startswith(".") or path.name == "train.lock"]


def test_n30_a_disk_that_fails_is_still_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lacks(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        atomic.sync_folder(tmp_path)
    with pytest.raises(OSError, match="Input/output"):
        atomic.write_text(tmp_path / "file", "content")


@pytest.mark.parametrize("number", [*LACKING, errno.EXDEV, errno.EMLINK])
def test_n29_without_hard_links_one_process_still_trains(tmp_path, monkeypatch, caplog, number):
    monkeypatch.setattr(os, "link", lacks(number))
    path = tmp_path / "train.lock"
    with RunLock(path) as held:
        held.check()
        assert is_held(path)
        with pytest.raises(RefusedError, match=f"process {os.getpid()}"):
            RunLock(path).__enter__()
    (line,) = warnings(caplog)
    assert line.startswith(f"this file system has no hard links (link: {os.strerror(number)})")
    path.write_text('{"host": "elsewhere", "pid": 1}')  # of a host that died
    with RunLock(path, clock=lambda: path.stat().st_mtime + 301):
        pass
    assert list(tmp_path.iterdir()) == []


def test_n29_a_lock_that_another_is_about_to_write_is_held(tmp_path, monkeypatch):
    """Created in place, a lock is empty for a moment."""
    monkeypatch.setattr(os, "link", lacks(errno.EPERM))
    (tmp_path / "train.lock").touch()
    with pytest.raises(RefusedError):
        RunLock(tmp_path / "train.lock").__enter__()


def test_n29_where_no_lock_can_be_made_the_file_system_and_the_remedy_are_named(tmp_path, data, monkeypatch, capsys):
    folder, opened = make_run(tmp_path / "run", data, steps=1), Path.open

    def not_alone(self, mode="r", **options):
        return lacks(errno.ENOSYS)() if mode == "x" else opened(self, mode, **options)

    monkeypatch.setattr(os, "link", lacks(errno.EPERM))
    monkeypatch.setattr(Path, "open", not_alone)
    assert main(["train", "--run-dir", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "train.lock: this file system has no hard links" in line
    assert "keep results on another file system" in line
    assert not (folder / "metrics.jsonl").exists()


def test_n29_the_sign_of_life_is_given_without_dates_to_set(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "utime", lacks(errno.EPERM))
    path = tmp_path / "train.lock"
    with RunLock(path) as held:
        os.truncate(path, path.stat().st_size)
        before = path.stat().st_mtime_ns
        while path.stat().st_mtime_ns == before:  # the clock of the file system ticks in milliseconds
            held._touch()
        held.check()


def test_n29_a_file_system_that_renames_no_file_is_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lacks(errno.ENOSYS))
    with pytest.raises(OSError, match=r"result\.json cannot be written: .* keep results on another file system"):
        atomic.write_json(tmp_path / "result.json", {})
    assert list(tmp_path.iterdir()) == []


def test_n29_a_checkpoint_put_in_place_file_by_file_is_whole_or_passed_over(tmp_path, monkeypatch):
    """Killed between the two files, there is no manifest to trust."""
    replace, progress = Path.replace, checkpoint.Progress(step=1)

    def killed(self, target):
        if self.name == "manifest.json":
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lacks(errno.EXDEV))
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, run_hash="h", progress=progress, state={})
    assert checkpoint.newest(tmp_path, run_hash="h") is None
    checkpoint.save(tmp_path, run_hash="h", progress=progress, state={})
    assert checkpoint.newest(tmp_path, run_hash="h").progress.step == 1


@pytest.fixture
def nfs(monkeypatch):
    """A file that another process has open stays, under a name that starts with `.nfs`."""
    unlink = os.unlink

    def busy(path, **options):
        if Path(path).name.startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", busy)


def save(root, step, **options):
    return checkpoint.save(root, run_hash="h", progress=checkpoint.Progress(step=step), state={}, **options)


@pytest.mark.usefixtures("nfs")
@pytest.mark.parametrize("renames", [True, False])
def test_n29_a_checkpoint_that_cannot_be_deleted_ends_no_training(tmp_path, monkeypatch, caplog, renames):
    if not renames:
        monkeypatch.setattr(Path, "rename", lacks(errno.EXDEV))
    for step in (1, 2):
        (save(tmp_path, step) / ".nfs0001").touch()
    save(tmp_path, 2)  # over a broken one
    for _ in range(3):
        checkpoint.retain(tmp_path, count=1)
    assert len(warnings(caplog)) == 2  # one for each, not for each save
    assert any(f"step00000001 could not be deleted ({os.strerror(errno.EBUSY)})" in line for line in warnings(caplog))
    assert checkpoint.newest(tmp_path, run_hash="h").progress.step == 2
    (save(tmp_path, 2, result="r") / ".nfs0002").touch()
    save(tmp_path, 2, result="r")
    assert checkpoint.read(tmp_path / "final", run_hash="h").progress.step == 2
    names = {path.name for path in tmp_path.iterdir() if not atomic.is_temporary(path)}
    assert names == {"step00000002", "final"} | (set() if renames else {"step00000001"})


@pytest.mark.usefixtures("nfs")
@pytest.mark.parametrize("finished", [True, False])
def test_n29_leftovers_that_cannot_be_deleted_stop_no_sweep(tmp_path, caplog, finished):
    """They are deleted as soon as they can be."""
    folder = RunFolder(tmp_path)
    save(folder.checkpoints, 1)
    for name in (".step00000002.tmp", ".final.5ca1ab1e.tmp", "step00000001"):
        (folder.checkpoints / name).mkdir(exist_ok=True)
        (folder.checkpoints / name / ".nfs0001").touch()
        (folder.checkpoints / name / "zzz").touch()
    (tmp_path / ".summary.json.17.tmp").touch()
    sweep(folder, finished=finished)
    assert not [path for path in tmp_path.rglob("*") if path.name == "zzz" and "step00000001" not in path.parts]
    assert (folder.checkpoints / "step00000001").exists() != finished
    assert not (tmp_path / ".summary.json.17.tmp").exists()
    for path in tmp_path.rglob(".nfs*"):
        path.rename(path.with_name("free"))
    sweep(folder, finished=True)
    assert list(folder.checkpoints.iterdir()) == []
    assert len(warnings(caplog)) == (3 if finished else 2)


def test_n29_a_temporary_name_is_nobody_elses(tmp_path, monkeypatch):
    """Containers on several hosts share process numbers, and a folder of the same name could not be deleted."""
    names = {atomic.temporary_name(tmp_path / "final") for _ in range(100)}
    assert len(names) == 100
    assert all(atomic.is_temporary(name) and not atomic.is_temporary(tmp_path / "final") for name in names)


@pytest.mark.parametrize("finished", [True, False])
def test_n22_a_checkpoint_behind_a_link_loses_the_link_only(tmp_path, finished):
    folder, disk = RunFolder(tmp_path / "run"), tmp_path / "disk"
    save(disk, 1)
    folder.checkpoints.mkdir(parents=True)
    (folder.checkpoints / "step00000001").symlink_to(disk / "step00000001")
    assert checkpoint.newest(folder.checkpoints, run_hash="h").progress.step == 1
    if finished:
        sweep(folder, finished=True)
    else:
        checkpoint.retain(folder.checkpoints, count=0)
    assert list(folder.checkpoints.iterdir()) == []
    assert checkpoint.newest(disk, run_hash="h").progress.step == 1
    (folder.checkpoints / "step00000001").symlink_to(tmp_path / "nowhere")
    assert save(folder.checkpoints, 1).is_dir()


@pytest.mark.parametrize("number", [*LACKING, errno.ENOLCK])
def test_n15_without_flock_a_file_is_fetched_and_the_remedy_is_said(tmp_path, monkeypatch, number):
    monkeypatch.setattr(fcntl, "flock", lacks(number))
    said = []
    with hub._exclusive(tmp_path / "partial", said.append) as out:
        out.write(b"content")
    assert (tmp_path / "partial").read_bytes() == b"content"
    (line,) = said
    assert f"no locks on this file system ({os.strerror(number)})" in line
    assert "one process at a time" in line


def test_n15_a_flock_that_fails_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lacks(errno.EIO))
    with pytest.raises(OSError, match="Input/output"), hub._exclusive(tmp_path / "partial", print):
        pass
