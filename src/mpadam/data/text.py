"""What a source of text gives: shards, each of which can be read by a job of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Split = Literal["train", "validation"]


class Text(Protocol):
    """The documents of one shard, read as a stream; an iteration reads the shard once, from its start."""

    def __iter__(self) -> Iterator[str]: ...

    def receipt(self) -> dict[str, Any]:
        """Where the text came from, with its SHA-256. To be asked once the iteration has ended."""


@dataclass(frozen=True)
class TextShard:
    """A part of the text of one split.

    name: of its token files, e.g. `train-00000-of-01024`; the order of names is the order of the text.
    reader: opens it.
    path: the file it is, if it is one.
    facts: what of its receipt is known before it is read; tells token files made of another text.
    """

    name: str
    split: Split
    reader: Callable[[TextShard], Text]
    path: Path | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Text:
        return self.reader(self)
