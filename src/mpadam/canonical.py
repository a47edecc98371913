"""One text, and one checksum, for equal values of JSON."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any, *, allow_nan: bool = False) -> str:
    """One text for equal values: sorted keys, no spaces, shortest floats.

    allow_nan: take NaN and infinity too, which JSON has not and a damaged file may hold; else ValueError.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=allow_nan)


def sha256_of(value: Any) -> str:
    """SHA-256 of what JSON can hold, however it is laid out in a file."""
    return hashlib.sha256(canonical_json(value, allow_nan=True).encode()).hexdigest()


def record_sha256(value: Any) -> str:
    """SHA-256 of a record of training, over the text that checkpoints and results have been checked by since they are:
    that of `json.dumps`, with spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
