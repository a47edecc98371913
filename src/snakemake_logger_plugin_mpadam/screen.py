"""Standard error, as a person or a file gets it: lines that stay, and below them one that moves."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live

ON_TERMINAL_SECONDS = 0.5
ELSEWHERE_SECONDS = 30.0


class Screen:
    """On a terminal that understands cursor movements the line moves. Elsewhere it is written twice a minute."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def say(self, text: str) -> None:
        """Write lines that stay."""
        with self._lock:
            self._write(text)

    def move(self, line: Callable[[], str]) -> None:
        """Keep what `line` gives on the screen, from now until `close`."""
        self._live = _live() if sys.stderr.isatty() else None
        threading.Thread(target=self._keep_moving, args=[line], daemon=True).start()

    def close(self) -> None:
        """Nothing moves any more; lines that stay may still be written."""
        with self._lock:
            self._over.set()
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _keep_moving(self, line: Callable[[], str]) -> None:
        while not self._over.wait(ON_TERMINAL_SECONDS if self._live else ELSEWHERE_SECONDS):
            text = line()  # may wait for who holds this screen's lock
            with self._lock:
                if self._over.is_set():
                    return
                self._draw(text)

    def _draw(self, text: str) -> None:
        if self._live is None:
            self._write(text)
        else:
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)

    def _write(self, text: str) -> None:
        if self._live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._live.console.print(text, soft_wrap=True)


def _live() -> Live | None:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, force_terminal=True, markup=False, highlight=False, emoji=False)
    if console.is_dumb_terminal:
        return None
    live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
    live.start()
    console.show_cursor(True)  # a kill would leave it hidden
    return live
