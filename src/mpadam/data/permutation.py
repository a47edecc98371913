"""A shuffle computed as a function: the position of any of billions of sequences, without a list of them.

A Feistel network permutes the numbers below a power of four. Numbers at or above the wanted size pass through it again
until they fall below ("cycle walking"), which permutes exactly the numbers below that size.
"""

import hashlib

import numpy as np
import numpy.typing as npt

ROUNDS = 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # SplitMix64's finaliser


def permute(index: npt.NDArray[np.int64], *, size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The positions that the shuffle (seed, epoch) of `size` items gives the items `index` (all in 0..size-1)."""
    keys = _keys(seed, epoch)
    half = max(1, -(-(size - 1).bit_length() // 2))
    place = _feistel(index.astype(np.uint64), half, keys)
    while (outside := place >= size).any():
        place[outside] = _feistel(place[outside], half, keys)
    return place.astype(np.int64)


def _keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    text = f"mpadam data order, seed {seed}, epoch {epoch}"
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8 * ROUNDS).digest(), dtype="<u8").astype(np.uint64)


def _feistel(value: npt.NDArray[np.uint64], half: int, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A permutation of the numbers of 2*half bits."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = value >> shift, value & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << shift) | right


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """64 bits, each a function of all 64 bits of the value (arithmetic modulo 2^64)."""
    value = (value ^ (value >> np.uint64(30))) * _MIX[0]
    value = (value ^ (value >> np.uint64(27))) * _MIX[1]
    return value ^ (value >> np.uint64(31))
