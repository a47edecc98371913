"""One writer per run folder.

The lock is a file that says who holds it, linked into place, which is atomic on network file systems too; where there
are no hard links it is created in place, which only one process can do either. Its holder touches it every 30 s. On the
same host the holder's process decides whether it is stale (process number and start time, since numbers are used
again); from another host, or out of another container's processes, five minutes without a touch. Ages are told by the
clock of the file system, since clocks of hosts differ.

A holder that was cut off for so long that its lock was taken away finds out at its next heartbeat or save, and writes
no more.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mpadam.atomic import UNSUPPORTED
from mpadam.study.run_folder import read_json
from mpadam.training.folder import RefusedError

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0
SKEW_SECONDS = 86_400.0  # a lock from further ahead is a dead one, by a clock that has been set since


class RunLock:
    """Context manager: holds the lock of a run folder, or raises RefusedError with its holder.

    clock: what time it is, in seconds; default: the modification time of a file just written next to the lock.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] | None = None) -> None:
        self.path = path
        self._clock = clock
        self._released = threading.Event()
        self._content = json.dumps(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process_start": _process_start(os.getpid()),
                "processes_of": _processes_of(),
                "job": os.environ.get("SLURM_JOB_ID"),
                "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            }
        )

    def check(self) -> None:
        """Raise RefusedError if the lock is no longer this process's: it was taken for dead, and another one trains.

        One that cannot be read (ESTALE, EIO) says nothing about whose it is: the next check tells.
        """
        try:
            own = self._is_own()
        except OSError as error:
            log.warning("%s cannot be read (%s): training continues and tries again", self.path, error.strerror)
            return
        if not own:
            raise RefusedError(
                f"the lock of {self.path.parent} was taken away from process {os.getpid()} on {socket.gethostname()}, "
                f"which gave no sign of life for {STALE_SECONDS / 60:g} minutes; nothing more is written here. "
                f"{self._held() if self.path.exists() else 'Nobody trains there now: start again'}"
            )

    def _is_own(self) -> bool:
        try:
            return self.path.read_bytes() == self._content.encode()
        except FileNotFoundError:
            return False

    def __enter__(self) -> Self:
        temporary = self.path.with_name(f".{self.path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
        temporary.write_text(self._content, encoding="utf-8")
        try:
            if not self._link(temporary):
                self._remove_stale(self._clock() if self._clock else temporary.stat().st_mtime)
                if not self._link(temporary):
                    raise RefusedError(self._held())
        finally:
            temporary.unlink(missing_ok=True)
        threading.Thread(target=self._beat, name="run-lock-heartbeat", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        with suppress(OSError):  # one that cannot be read or deleted is taken for dead later
            if self._is_own():
                self.path.unlink()

    def _link(self, temporary: Path) -> bool:
        try:
            _link(temporary, self.path)
        except FileExistsError:
            return False
        return True

    def _remove_stale(self, now: float) -> None:
        """Take a dead holder's lock away. Raises RefusedError if it is alive.

        The lock is renamed first and looked at again: whoever came first may have put a live one in its place.
        """
        if is_held(self.path, now=now):
            raise RefusedError(self._held())
        aside = self.path.with_name(f".{self.path.name}.{socket.gethostname()}.{os.getpid()}.stale")
        with suppress(FileNotFoundError):
            self.path.rename(aside)
            if is_held(aside, now=now):
                self._link(aside)
            aside.unlink()

    def _held(self) -> str:
        holder = read_json(self.path) or {}
        if not {"pid", "host", "since"} <= holder.keys():
            return (
                f"{self.path} does not say which process trains there (damaged, or about to be written): it counts "
                f"until {STALE_SECONDS / 60:g} minutes after its last change"
            )
        job = f", Slurm job {holder['job']}" if holder.get("job") else ""
        return (
            f"{self.path.parent} is being trained by process {holder['pid']} on {holder['host']}{job} "
            f"since {holder['since']}"
        )

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # somebody else's lock is not touched; saving will tell
                if self._is_own():
                    self._touch()

    def _touch(self) -> None:
        try:
            os.utime(self.path)
        except OSError:  # its file system has no dates to set: the same bytes again, which nobody sees as others
            with self.path.open("r+", encoding="utf-8") as file:
                file.write(self._content)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name. Raises FileExistsError if there is such a file already.

    Where there are no hard links it is a copy. It is empty for a moment; an empty lock counts as somebody's, too.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _copy(source, target, f"no hard links (link: {error.strerror})")


def _copy(source: Path, target: Path, why: str) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"{target}: this file system has {why} and creates no file for one process alone ({error.strerror}), so "
            "nothing keeps a second process from training here; keep results on another file system",
        ) from error
    _warn_copied(why)


@cache  # one line per process
def _warn_copied(why: str) -> None:
    log.warning("this file system has %s: the lock of a run folder is created in place, which is as safe", why)


def is_held(path: Path, *, now: float | None = None) -> bool:
    """Whether the lock at `path` exists and belongs to somebody alive.

    now: seconds, by the clock that dates the files; default: this host's.
    """
    holder = read_json(path)
    try:
        age = (time.time() if now is None else now) - path.stat().st_mtime
    except FileNotFoundError:
        return False
    holder, processes = holder or {}, _processes_of()  # elsewhere, a process number does not mean what it means here
    here = holder.get("host") == socket.gethostname() and holder.get("processes_of", processes) == processes
    if here and isinstance(holder.get("pid"), int):
        return _is_alive(holder)
    return -SKEW_SECONDS < age < STALE_SECONDS


def _processes_of() -> str | None:
    """What gives process numbers their meaning: boot and process namespace; None where there is no /proc.

    Containers have namespaces of their own under the host's name, and hosts may share a name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_alive(holder: dict[str, Any]) -> bool:
    pid = int(holder["pid"])
    if pid < 1:  # which mean groups of processes
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # alive, and somebody else's
    return holder.get("process_start") == _process_start(pid)


def _process_start(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None where there is no /proc, or nothing left of it to run."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else rest[18]  # a dead process keeps its number until its parent asks after it
