"""Reading what an earlier version, an editor or a torn disk may have left: one line says which file is not right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
