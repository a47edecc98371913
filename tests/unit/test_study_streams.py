"""Random streams: separate, documented, and in the range that generators take."""

import hashlib
import itertools

from mpadam.study.streams import stream_seed

STREAMS = ("initialisation", "data-order", "rounding", "global")


def test_a_stream_is_the_hash_that_its_docstring_names():
    digest = hashlib.sha256(b"mpadam/initialisation/7/lm_head.weight").hexdigest()
    assert stream_seed(7, "initialisation", "lm_head.weight") == int(digest[:16], 16) // 2


def test_no_two_streams_share_a_seed():
    seeds = [stream_seed(seed, stream) for seed, stream in itertools.product(range(50), STREAMS)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
