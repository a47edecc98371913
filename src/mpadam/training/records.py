"""What a training writes while it runs: metrics.jsonl, probes.jsonl where it probes its updates, the progress line,
loss.svg, and W&B where it is on.

Only the leading rank has any of it; the records of the others do nothing. Before anything is written, the lock is
looked at: a process that lost it writes no more.
"""

from collections.abc import Callable
from typing import Any

from mpadam.training.checkpoint import Progress
from mpadam.training.metrics import MetricsFile
from mpadam.training.plot import LossPlot
from mpadam.training.progress import ProgressLine
from mpadam.training.session import Session
from mpadam.training.tracking import Tracker, open_tracker

#: hears of each logged step, of each validation, and of the end
Listener = ProgressLine | LossPlot | Tracker


class Records:
    """metrics: None on ranks that do not lead. probes: None there too, and where no update is probed.
    guard: raises if this process may not write any more."""

    def __init__(
        self,
        metrics: MetricsFile | None,
        listeners: list[Listener],
        guard: Callable[[], None],
        *,
        probes: MetricsFile | None = None,
    ) -> None:
        self._metrics, self._probes, self._listeners, self._guard = metrics, probes, listeners, guard

    def step(self, record: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._guard()
            self._metrics.append(record)
        for listener in self._listeners:
            listener.step(record)

    def validation(self, entry: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.validation(entry)

    def probe(self, line: dict[str, Any]) -> None:
        if self._probes is not None:
            self._guard()
            self._probes.append(line)

    def sync(self, progress: Progress) -> None:
        """Bring the files to disk and note how long they are, and their checksums."""
        if self._metrics is not None:
            self._guard()
            progress.metrics_bytes, progress.metrics_sha256 = self._metrics.sync()
        if self._probes is not None:
            progress.probes_bytes, progress.probes_sha256 = self._probes.sync()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for file in (self._metrics, self._probes):
            if file is not None:
                file.close()


def open_records(session: Session, guard: Callable[[], None]) -> Records:
    if not session.ranks.leads:
        return Records(None, [], guard)
    progress = session.progress
    listeners: list[Listener] = [
        ProgressLine(session.spec.training.steps, done=progress.step),
        LossPlot(session.folder, session.run, progress.validation),
    ]
    tracker = open_tracker(session.run, session.folder)
    listeners += [] if tracker is None else [tracker]
    metrics, probes = MetricsFile(session.folder.metrics, offset=progress.metrics_bytes), _open_probes(session)
    return Records(metrics, listeners, guard, probes=probes)


def _open_probes(session: Session) -> MetricsFile | None:
    """The file of probes; without any, what an attempt that was asked for some has left after the checkpoint goes."""
    path, length = session.folder.probes, session.progress.probes_bytes
    if session.run.probe_every is None and length == 0:
        path.unlink(missing_ok=True)
        return None
    return MetricsFile(path, offset=length)
