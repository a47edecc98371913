"""Whether a file is there. What cannot be read is not absent: taken for absent, a finished run would be called stopped,
trained again or left out of a table.

`Path.exists` and `Path.is_file` are not enough: for a link that leads nowhere or to itself, and in some versions of
Python for a file in a folder without permission, their answer is no.
"""

import errno
import os
from pathlib import Path


def is_there(path: Path) -> bool:
    """Whether a file or folder has this name.

    Raises OSError where that cannot be told: no permission, a failing disk, a link to what is not there (such as a disk
    that is not mounted).
    """
    try:
        path.stat()
    except FileNotFoundError:
        nearest = next(part for part in (path, *path.absolute().parents) if os.path.lexists(part))
        if nearest.is_symlink() and not nearest.exists():
            raise OSError(errno.EIO, "a link to what is not there", str(nearest)) from None
        return False
    return True


def entries(folder: Path) -> list[Path]:
    """What is in a folder, in order; nothing where there is no folder. Raises OSError where it cannot be read.

    `Path.glob` passes over folders that may not be read.
    """
    return sorted(folder.iterdir()) if is_there(folder) else []


def why_unreadable(error: OSError) -> str:
    """Which file could not be read, and why, in one line."""
    if error.filename is None:
        return f"cannot be read: {error}"
    return f"{Path(error.filename).name}: cannot be read: {error.strerror}"
