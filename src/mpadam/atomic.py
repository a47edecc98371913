"""Files that are either whole or absent: written under a temporary name in the same folder, synced, renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON; NaN and infinity are refused, since JSON has neither."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
