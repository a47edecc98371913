"""Files that are either whole or absent: written under a temporary name in the same folder, synced, renamed. And what
is deleted is out of the way at once, even where a file system keeps a part of it.
"""

import errno
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

TEMPORARY = ".tmp"  # how names end of what is not a result yet, or no longer
#: How a file system says that it does not have a call, rather than that the call failed.
UNSUPPORTED = frozenset(
    {
        *(errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EACCES),
        *(errno.EBADF, errno.EISDIR, errno.EXDEV, errno.EMLINK, errno.ENOLCK),
    }
)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; a reader sees the old file or the new one, never a part."""
    temporary = temporary_name(path)
    try:
        with naming(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        _replace(temporary, path)
    finally:
        with suppress(OSError):  # it is gone, or the write has failed for the same reason
            temporary.unlink()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError of writing an open file, such as a full disk, the name of the file, which it does not know."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def temporary_name(path: Path) -> Path:
    """A name in the folder of `path` that no other process uses, on this or another host, and that a sweep knows."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY}")


def is_temporary(path: Path) -> bool:
    """Whether a name is one of `temporary_name`, left by a process that was killed or by `remove`."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def remove(path: Path) -> None:
    """Delete a file, a link (not what it leads to) or a folder with all that is in it, if there is one.

    A file system may keep what another process has open (EBUSY, ENOTEMPTY because of `.nfs*`). That is no error: a
    folder has then left its name all the same, where folders can be renamed, and a warning says what is left.
    """
    left = path
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        if not is_temporary(path):
            with suppress(OSError):
                left = path.rename(temporary_name(path))
        shutil.rmtree(left)
    except OSError as error:
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)  # the first fault ends it: go on with what else is in it
        if os.path.lexists(left) and left not in _LEFT:
            _LEFT.add(left)
            log.warning("%s could not be deleted (%s): %s takes room until it is", path.name, error.strerror, left)


_LEFT: set[Path] = set()  # what could not be deleted, each of which is named once, however often it is tried again


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
        "checkpoint, and training then continues from the one before",
        what,
        why,
    )
