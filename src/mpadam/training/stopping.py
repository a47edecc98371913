"""Stopping in time: a wall-clock budget first, signals second. Either way the step is finished and saved."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

EXIT_STOPPED = 75
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopper:
    """Says when to stop. As a context manager it also catches SIGTERM and SIGUSR1; handlers only set a flag."""

    def __init__(self, minutes: float | None = None) -> None:
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._signal: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def reason(self) -> str | None:
        """Why training has to stop now, or None."""
        if self._signal is not None:
            return f"signal {signal.Signals(self._signal).name}"
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return "time is up"
        return None

    def __enter__(self) -> Stopper:
        self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number
