"""Random streams of a run: the run's seed, and a name for what it is used for.

Initialisation, data order and rounding bits each draw from their own stream, so that none shifts when another draws
more or less: two optimizers at one seed see the same initial weights and the same batches.
"""

import hashlib
from typing import Literal

Stream = Literal["initialisation", "data-order", "rounding", "global"]


def stream_seed(seed: int, stream: Stream, *keys: str | int) -> int:
    """The seed of a stream: the first 63 bits of SHA-256 over `mpadam/<stream>/<seed>[/<key>...]`.

    keys: further names that tell streams of one kind apart, e.g. the parameter to initialise.
    Returns an integer in [0, 2**63), which torch and numpy generators take as it is.
    """
    text = "/".join(["mpadam", stream, str(seed), *map(str, keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
