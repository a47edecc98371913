"""Files that are either whole or absent: written under a temporary name in the same folder, synced, renamed."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

#: How a file system says that it does not have a call, rather than that the call failed.
UNSUPPORTED = frozenset(
    {
        *(errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EACCES),
        *(errno.EBADF, errno.EISDIR, errno.EXDEV, errno.EMLINK, errno.ENOLCK),
    }
)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        _replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _replace(temporary: Path, path: Path) -> None:
    try:
        temporary.replace(path)
    except PermissionError:
        raise
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        raise OSError(
            error.errno,
            f"{path} cannot be written: its file system does not rename files ({error.strerror}), so a reader could "
            "see half of one; keep results on another file system",
        ) from error


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON; NaN and infinity are refused, since JSON has neither."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def sync(descriptor: int) -> None:
    """Bring an open file to disk, as far as its file system does that. Raises OSError if the disk fails or is full."""
    with _where_supported("files"):
        os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Bring a folder's entries to disk, as far as its file system does that: a rename is durable only then."""
    with _where_supported("folders"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _where_supported(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _warn_unsynced(what, error.strerror)


@cache  # one line per process
def _warn_unsynced(what: str, why: str) -> None:
    log.warning(
        "this file system does not bring %s to disk when asked (fsync: %s): a power failure may cost the newest "
        "checkpoint, and training then goes on from the one before",
        what,
        why,
    )
