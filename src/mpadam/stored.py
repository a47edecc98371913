"""Reading what an earlier version, an editor or a torn disk may have left: one line says which file is not right."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpadam.presence import is_there


@contextmanager
def stored(path: Path, *, remedy: str) -> Iterator[None]:
    """Around the lines that read a stored record: whatever they stumble over is a ValueError in one line.

    path: the file; remedy: what to do about one that is damaged or another version's.
    """
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON ({error}); {remedy}") from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: not what this version of mpadam writes ({why}); {remedy}") from error


def read_object(path: Path, *, remedy: str) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file.

    Raises ValueError as `stored` where the file holds something else.
    """
    if not is_there(path):
        return {}
    with stored(path, remedy=remedy):
        return {**json.loads(path.read_text(encoding="utf-8"))}


def sha256(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal digits, None where there is no file."""
    if not is_there(path):
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(named: Iterable[tuple[str, Path]]) -> str:
    """A line for each file, its SHA-256 and its name, in the form of `sha256sum`."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in named)
