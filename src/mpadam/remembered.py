"""What was found out about this machine by an earlier process, so that a command need not import torch to ask again.

    remembered("compiles", circumstances, find)      find(), or what it returned under the same circumstances

The outcome is kept in the temporary folder, under a name made of what it depends on. Where nothing can be kept, `find`
is called each time.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mpadam.atomic import write_text

Found = TypeVar("Found", str, bool)


def remembered(name: str, circumstances: Sequence[str], find: Callable[[], Found]) -> Found:
    """What `find` returns, from an earlier process of this user if there was one under these circumstances."""
    try:
        digest = hashlib.sha256(json.dumps(circumstances).encode()).hexdigest()[:32]
        path = Path(tempfile.gettempdir(), f"mpadam-{os.getuid()}", f"{name}-{digest}.json")
    except OSError:  # no temporary folder
        return find()
    with suppress(OSError, ValueError, KeyError, TypeError):
        if path.stat().st_uid == os.getuid():
            kept: Found = json.loads(path.read_text(encoding="utf-8"))[name]
            return kept
    found = find()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_text(path, json.dumps({name: found}))
    return found
