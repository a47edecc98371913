"""How sequences of a fixed length L are cut from tokens: a registry of two ways.

    truncate_pad   one document per sequence: its first L tokens, padded where it has fewer (GaLore's protocol)
    pack           documents end to end, cut every L tokens; a rest at the end of an epoch is left out

A budget counts positions, so `truncate_pad` spends part of it on padding.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[Any]
IGNORED = -100  # label of a position that is no target, as in torch's cross entropy


class Documents(Protocol):
    """What the layouts need of a split (`loader.TokenSplit`)."""

    @property
    def documents(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    def document(self, index: int, limit: int | None = None) -> Tokens: ...
    def span(self, start: int, stop: int) -> Tokens: ...


@dataclass(frozen=True)
class Layout:
    """count: sequences in a split. read: one of them, at most L tokens. cut: a validation set (see `ValidationSet`)."""

    count: Callable[[Documents, int], int]
    read: Callable[[Documents, int, int], Tokens]
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
