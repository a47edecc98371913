"""Time and throughput, and one progress line: step, %, loss, rates, tokens/s, time left."""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mpadam.durations import duration
from mpadam.training.checkpoint import Progress

log = logging.getLogger(__name__)

SECONDS_BETWEEN = 15.0
ON_TERMINAL = {"on_terminal": True}  # marks log records that a terminal shows otherwise
WARM_UP_STEPS = 5  # of each attempt: left out of the throughput, since they load, compile and allocate


class Meter:
    """Counts the time of a run, and the target tokens per second of its updates (validations and saves left out)."""

    def __init__(self, progress: Progress, *, ranks: int = 1) -> None:
        self._progress = progress
        self._ranks = ranks
        self._counted = time.perf_counter()
        self._started = self._counted
        self._updates, self._seconds, self._tokens = 0, 0.0, 0

    def start(self) -> None:
        self._started = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside, between `start` and `stop`, is no part of the update."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._started += time.perf_counter() - began

    def stop(self, target_tokens: int, positions: int) -> None:
        """The update has seen so many target tokens and positions, and is over."""
        took = time.perf_counter() - self._started
        self._updates += 1
        self._seconds += took
        self._tokens += target_tokens
        if self._updates > WARM_UP_STEPS:
            self._progress.timed_seconds += took
            self._progress.timed_tokens += target_tokens
            self._progress.timed_positions += positions

    def tokens_per_s(self) -> float:
        """Target tokens per second of the updates since this was last asked."""
        rate = self._tokens / self._seconds
        self._seconds, self._tokens = 0.0, 0
        return rate

    def count(self) -> None:
        """Add the time since the last call to the run's seconds."""
        now = time.perf_counter()
        self._progress.seconds += now - self._counted
        self._progress.device_seconds += (now - self._counted) * self._ranks
        self._counted = now


class ProgressLine:
    """Shows where training is: on a terminal at every logged step, in a log now and then and at the end."""

    def __init__(self, steps: int, *, done: int) -> None:
        self._steps, self._done = steps, done
        self._started = self._shown = time.monotonic()
        self._terminal, self._open = sys.stderr.isatty(), False

    def step(self, record: Mapping[str, float]) -> None:
        """record: a line of metrics.jsonl."""
        now, step = time.monotonic(), int(record["step"])
        text = self._text(record, now)
        if self._terminal:
            self._open = self._show(f"\r{text}\033[K")
        if step in (self._done + 1, self._steps) or now - self._shown >= SECONDS_BETWEEN:
            self._shown = now
            log.info(text, extra=ON_TERMINAL)

    def validation(self, entry: Mapping[str, float]) -> None:
        """The picture and the summary show it."""

    def close(self) -> None:
        """End the line on a terminal, so that what is said next begins a new one."""
        if self._open:
            self._show("\n")
            self._open = False

    def _show(self, text: str) -> bool:
        """Write to the terminal; whether it is still there. One that was closed ends no training."""
        try:
            print(text, end="", file=sys.stderr, flush=True)
        except OSError:
            self._terminal = False
        return self._terminal

    def _text(self, record: Mapping[str, float], now: float) -> str:
        step = int(record["step"])
        left = (now - self._started) / max(1, step - self._done) * (self._steps - step)
        rates = " ".join(f"{key} {record[key]:.2e}" for key in ("lr", "lr_mult") if key in record)
        return (
            f"step {step}/{self._steps} {step / self._steps:4.0%} | loss {record['loss']:.4f} | {rates} | "
            f"grad norm {record['grad_norm']:.3f} | {record['tokens_per_s']:,.0f} tokens/s | ETA {duration(left)}"
        )
