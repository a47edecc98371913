"""One writer a run folder.

The lock is a file that says who holds it, linked into place, which is atomic on network file systems too. Its holder
touches it every 30 s. On the same host the holder's process decides whether it is stale (process number and start
time, since numbers are used again); from another host, five minutes without a touch.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from mpadam.training.folder import RefusedError, read_json

HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0


class RunLock:
    """Context manager: holds the lock of a run folder, or raises RefusedError with its holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._released = threading.Event()
        self._content = json.dumps(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process_start": _process_start(os.getpid()),
                "job": os.environ.get("SLURM_JOB_ID"),
                "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            }
        )

    def __enter__(self) -> RunLock:
        temporary = self.path.with_name(f".{self.path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
        temporary.write_text(self._content, encoding="utf-8")
        try:
            if not self._link(temporary):
                self._remove_stale()
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
        with suppress(FileNotFoundError):
            if self.path.read_text(encoding="utf-8") == self._content:
                self.path.unlink()

    def _link(self, temporary: Path) -> bool:
        try:
            os.link(temporary, self.path)
        except FileExistsError:
            return False
        return True

    def _remove_stale(self) -> None:
        """Take a dead holder's lock away. Raises RefusedError if it is alive.

        The lock is renamed first and looked at again: whoever came first may have put a live one in its place.
        """
        if is_held(self.path):
            raise RefusedError(self._held())
        aside = self.path.with_name(f".{self.path.name}.{socket.gethostname()}.{os.getpid()}.stale")
        with suppress(FileNotFoundError):
            self.path.rename(aside)
            if is_held(aside):
                self._link(aside)
            aside.unlink()

    def _held(self) -> str:
        holder = read_json(self.path) or {}
        job = f", Slurm job {holder['job']}" if holder.get("job") else ""
        return (
            f"{self.path.parent} is being trained by process {holder.get('pid')} on {holder.get('host')}{job} "
            f"since {holder.get('since')}"
        )

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(self.path)


def is_held(path: Path) -> bool:
    """Whether the lock at `path` exists and belongs to somebody alive."""
    holder = read_json(path)
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    if holder is not None and holder.get("host") == socket.gethostname():
        return _is_alive(holder)
    return age < STALE_SECONDS


def _is_alive(holder: dict[str, Any]) -> bool:
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # alive, and somebody else's
    return holder.get("process_start") == _process_start(int(holder["pid"]))


def _process_start(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
