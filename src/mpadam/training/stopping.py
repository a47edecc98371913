"""Stopping in time: a wall-clock budget first, signals second. Either way the step is finished and saved."""

import os
import signal
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Self

#: Every signal by which a person, a terminal or a scheduler asks a process to end, or warns that it will be ended.
SIGNALS = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM),
    *((signal.SIGPWR,) if hasattr(signal, "SIGPWR") else ()),
)
#: The same signal again ends the process at once, if it comes later than so many seconds: sooner it is the same
#: request, passed on by a process in between as well. Others are warnings, which may come any number of times.
REPEATED_SECONDS = {signal.SIGINT: 0.25, signal.SIGQUIT: 0.25, signal.SIGTERM: 2.0, signal.SIGHUP: 2.0}


class EndedAtOnceError(KeyboardInterrupt):
    """A signal came again: the step under way is neither finished nor saved. `exit_code` is that of a shell."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"a second {number.name}: ended at once; the same command continues from the last checkpoint")
        self.exit_code = 128 + number


class Stopper:
    """Says when to stop. As a context manager it also catches `SIGNALS`; handlers only set a flag.

    A signal that was ignored when the process was started (SIGHUP under `nohup`) stays ignored.
    """

    def __init__(self, minutes: float | None = None) -> None:
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._received: dict[signal.Signals, float] = {}
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def signal(self) -> str | None:
        """The first signal that has asked to stop, or None."""
        return next((f"signal {number.name}" for number in self._received), None)

    @property
    def reason(self) -> str | None:
        """Why training has to stop now, or None."""
        if self.signal is not None:
            return self.signal
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return "time is up"
        return None

    def __enter__(self) -> Self:
        self._previous = catch(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not installed from Python

    def _note(self, received: int, _frame: FrameType | None) -> None:
        number, now = signal.Signals(received), time.monotonic()
        if not self._received:
            with suppress(OSError):  # the terminal may be gone; neither logging nor print may be used here
                os.write(2, f"\n{number.name}: finishing the step and saving\n".encode())
        first = self._received.setdefault(number, now)
        if now - first > REPEATED_SECONDS.get(number, float("inf")):
            raise EndedAtOnceError(number)


def catch(handler: Any) -> dict[signal.Signals, Any]:
    """Install a handler for each of `SIGNALS` that is not ignored; returns the handlers before.

    Those that the parent process has blocked are let through: they would never be seen.
    """
    caught = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in caught}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)
    return previous
