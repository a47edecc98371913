"""`metrics.jsonl`: one line a logged step, each step once, whatever happened in between; so is `probes.jsonl`.

A checkpoint records how long the file was. On resume it is cut back to that length, so that steps which are done
again are not logged twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mpadam.atomic import sync


class MetricsFile:
    """Appends whole lines."""

    def __init__(self, path: Path, *, offset: int) -> None:
        """Open the file, cut to `offset` bytes. The caller has seen to it that it is that long (`holds`)."""
        self._file = path.open("ab")
        self._file.truncate(offset)

    def append(self, record: dict[str, Any]) -> None:
        """Write one line; a reader sees it at once."""
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Bring the file to disk; returns its length in bytes."""
        sync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()


def holds(path: Path, offset: int) -> bool:
    """Whether the file has at least `offset` bytes and a line ends there."""
    if offset == 0:
        return True
    if not path.is_file() or path.stat().st_size < offset:
        return False
    with path.open("rb") as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
