"""What pydantic found wrong first, in one line: where, what, and the value that is there."""

import json
from typing import Any

from pydantic import ValidationError


def first_fault(error: ValidationError, *, root: str = "") -> str:
    """`grids.0.seeds: Input should be a valid list, but it is "all"`.

    root: where the faulty content is, as the beginning of a dotted name.
    """
    return fault(dict(error.errors()[0]), root=root)


def fault(found: dict[str, Any], *, root: str = "") -> str:
    """One of the errors that pydantic lists."""
    where = ".".join(filter(None, [root, *map(str, found["loc"])]))
    message = str(found["ctx"]["error"]) if found["type"] == "value_error" else found["msg"]
    value = "" if found["type"] in ("missing", "value_error") else f", but it is {short(found['input'])}"
    return f"{where}: {message}{value}" if where else f"{message}{value}"


def short(value: Any, longest: int = 60) -> str:
    """A value as JSON, cut to so many characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= longest else text[: longest - 3] + "..."
