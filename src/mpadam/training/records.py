"""What a training writes while it runs: metrics.jsonl, the progress line, loss.svg, and W&B where it is on.

Only the leading rank has any of it; the records of the others do nothing. Before anything is written, the lock is
looked at: a process that lost it writes no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mpadam.training.metrics import MetricsFile
from mpadam.training.plot import LossPlot
from mpadam.training.progress import ProgressLine
from mpadam.training.session import Session
from mpadam.training.tracking import open_tracker


class Listener(Protocol):
    """Hears of each logged step, of each validation, and of the end."""

    def step(self, record: dict[str, Any]) -> None: ...

    def validation(self, entry: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Records:
    """metrics: None on ranks that do not lead. guard: raises if this process may not write any more."""

    def __init__(self, metrics: MetricsFile | None, listeners: list[Listener], guard: Callable[[], None]) -> None:
        self._metrics, self._listeners, self._guard = metrics, listeners, guard

    def step(self, record: dict[str, Any]) -> None:
        """A logged step."""
        if self._metrics is not None:
            self._guard()
            self._metrics.append(record)
        for listener in self._listeners:
            listener.step(record)

    def validation(self, entry: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.validation(entry)

    def sync(self) -> int:
        """Bring the metrics to disk; returns the file's length in bytes."""
        if self._metrics is None:
            return 0
        self._guard()
        return self._metrics.sync()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._metrics is not None:
            self._metrics.close()


def open_records(session: Session, guard: Callable[[], None]) -> Records:
    """The records of a training from where the session stands."""
    if not session.ranks.leads:
        return Records(None, [], guard)
    progress = session.progress
    listeners: list[Listener] = [
        ProgressLine(session.spec.training.steps, done=progress.step),
        LossPlot(session.folder, session.run, progress.validation),
    ]
    tracker = open_tracker(session.run, session.folder)
    listeners += [] if tracker is None else [tracker]
    return Records(MetricsFile(session.folder.metrics, offset=progress.metrics_bytes), listeners, guard)
