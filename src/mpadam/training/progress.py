"""One progress line: step, %, loss, rates, tokens/s, time left."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)

SECONDS_BETWEEN = 15.0


class ProgressLine:
    """Shows where training is: on a terminal at every logged step, in a log now and then and at the end."""

    def __init__(self, steps: int, *, done: int) -> None:
        self._steps, self._done = steps, done
        self._started = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def show(self, record: Mapping[str, float]) -> None:
        """record: a line of metrics.jsonl."""
        now, step = time.monotonic(), int(record["step"])
        text = self._text(record, now)
        if self._terminal:
            print(f"\r{text}\033[K", end="\n" if step == self._steps else "", file=sys.stderr, flush=True)
        if step in (self._done + 1, self._steps) or now - self._shown >= SECONDS_BETWEEN:
            self._shown = now
            log.info(text)

    def _text(self, record: Mapping[str, float], now: float) -> str:
        step = int(record["step"])
        left = (now - self._started) / max(1, step - self._done) * (self._steps - step)
        rates = " ".join(f"{key} {record[key]:.2e}" for key in ("lr", "lr_mult") if key in record)
        return (
            f"step {step}/{self._steps} {step / self._steps:4.0%} | loss {record['loss']:.4f} | {rates} | "
            f"grad norm {record['grad_norm']:.3f} | {record['tokens_per_s']:,.0f} tokens/s | ETA {duration(left)}"
        )


def duration(seconds: float) -> str:
    """`1:02:03`, `4:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
