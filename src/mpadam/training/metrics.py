"""`metrics.jsonl`: one line a logged step, each step once, whatever happened in between; so is `probes.jsonl`.

A checkpoint records how long the file was and its checksum. On resume it is cut back to that length, so that steps
which are done again are not logged twice.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpadam.atomic import naming, sync
from mpadam.presence import is_there
from mpadam.study.run_folder import records


class MetricsFile:
    """Appends whole lines."""

    def __init__(self, path: Path, *, offset: int) -> None:
        """Open the file, cut to `offset` bytes. The caller has seen to it that it is that long (`holds`)."""
        self._path, self._file = path, path.open("ab")
        self._file.truncate(offset)
        self._digest = hashlib.sha256(path.read_bytes())

    def append(self, record: dict[str, Any]) -> None:
        """Write one line; a reader sees it at once."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with naming(self._path):
            self._file.write(line)
            self._file.flush()
        self._digest.update(line)

    def sync(self) -> tuple[int, str]:
        """Bring the file to disk; returns its length in bytes and the SHA-256 of what was written."""
        with naming(self._path):
            sync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size, self._digest.hexdigest()

    def close(self) -> None:
        with suppress(OSError):  # what could not be written was said, and is written again after a resume
            self._file.close()


def holds(path: Path, offset: int, digest: str | None = None) -> bool:
    """Whether the file has at least `offset` bytes, and these are whole lines of records.

    digest: their SHA-256; None where an older version has kept none.
    """
    if offset == 0:
        return True
    if not is_there(path) or path.stat().st_size < offset:
        return False
    with path.open("rb") as file:
        content = file.read(offset)
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        return False
    try:
        return content.endswith(b"\n") and all(records(content.splitlines(), path))
    except ValueError:
        return False
