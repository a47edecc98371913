"""Printing the status once, or again and again until the study has ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mpadam.status.report import Status, read_status, to_text
from mpadam.study.config import StudyConfig

CLEAR = "\033[H\033[2J"


def watch(
    config: StudyConfig,
    results: Path,
    *,
    seconds: float | None,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the status to standard output.

    seconds: between two looks; None: look once. It ends by itself when every training has ended, and quietly on Ctrl-C.
    """
    again = seconds is not None
    with suppress(KeyboardInterrupt):
        while True:
            status = read_status(config, results)
            _print(status, as_json=as_json, again=again)
            if seconds is None or status.ended:
                return
            sleep(seconds)


def _print(status: Status, *, as_json: bool, again: bool) -> None:
    """On a terminal a new look takes the place of the one before."""
    if as_json:
        text = json.dumps(status.as_json(), indent=None if again else 2, allow_nan=False) + "\n"
    else:
        clear = CLEAR if again and sys.stdout.isatty() else ""
        text = clear + to_text(status) + (f"\n{time.strftime('%H:%M:%S')}\n" if again else "")
    sys.stdout.write(text)
    sys.stdout.flush()
