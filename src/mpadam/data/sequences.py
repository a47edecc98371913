"""How sequences of a fixed length L are cut from tokens: a registry of two ways. And the order in which they are read.

    truncate_pad   one document per sequence: its first L tokens, padded where it has fewer (GaLore's protocol)
    pack           documents end to end, cut every L tokens; a rest at the end of an epoch is left out

A budget counts positions, so `truncate_pad` spends part of it on padding.

The shuffle is computed as a function: the position of any of billions of sequences, without a list of them. A Feistel
network permutes the numbers below a power of four. Numbers at or above the wanted size pass through it again until they
fall below ("cycle walking"), which permutes exactly the numbers below that size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpadam.data.loader import TokenSplit

Tokens = npt.NDArray[Any]
IGNORED = -100  # label of a position that is no target, as in torch's cross entropy


@dataclass(frozen=True)
class Layout:
    """count: sequences in a split. read: one of them, at most L tokens. cut: a validation set (see `ValidationSet`)."""

    count: Callable[[TokenSplit, int], int]
    read: Callable[[TokenSplit, int, int], Tokens]
    cut: Callable[[Iterable[Tokens], int, int], Iterator[Tokens]]


def _cut_documents(documents: Iterable[Tokens], length: int, targets: int) -> Iterator[Tokens]:
    """The beginning of each document, until there are `targets` target tokens."""
    for document in documents:
        sequence = document[: min(length, targets + 1)]
        if targets == 0:
            return
        targets -= len(sequence) - 1
        yield sequence


def _cut_stream(documents: Iterable[Tokens], length: int, targets: int) -> Iterator[Tokens]:
    """Windows of `length` over the joined documents, each starting at the last token of the one before."""
    wanted: list[Tokens] = []
    missing = targets + 1
    for document in documents:
        wanted.append(document[:missing])
        missing -= len(wanted[-1])
        if missing == 0:
            break
    stream = np.concatenate(wanted) if wanted else np.empty(0, np.int64)
    for start in range(0, len(stream) - 1, length - 1):
        yield stream[start : start + length]


SEQUENCES: dict[str, Layout] = {
    "truncate_pad": Layout(
        count=lambda split, length: split.documents,
        read=lambda split, length, index: split.document(index, length),
        cut=_cut_documents,
    ),
    "pack": Layout(
        count=lambda split, length: split.tokens // length,
        read=lambda split, length, index: split.span(index * length, (index + 1) * length),
        cut=_cut_stream,
    ),
}


# --- their order ------------------------------------------------------------------------------------------------------


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
