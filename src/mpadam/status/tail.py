"""The end of a growing file, without reading the rest of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mpadam.presence import is_there

WINDOW = 8192  # bytes; a line of metrics.jsonl has about 200


def last_lines(path: Path, *, window: int = WINDOW) -> list[str]:
    """The whole lines among the last `window` bytes; a line that is still being written is left out.

    Empty for a file that is missing or empty.
    """
    if not is_there(path):
        return []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window - 1))
            block = file.read()
    except FileNotFoundError:  # gone meanwhile
        return []
    whole = block[: block.rfind(b"\n") + 1].splitlines()
    if size > window + 1:
        whole = whole[1:]  # its beginning lies before the window
    return [line.decode("utf-8", errors="replace") for line in whole]


def last_records(path: Path, *, window: int = WINDOW) -> list[dict[str, Any]]:
    """The JSON objects among the last lines of a file; what is none is passed over."""
    records = []
    for line in last_lines(path, window=window):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
