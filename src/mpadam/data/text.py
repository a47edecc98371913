"""What a source of text gives: shards, each of which one job can read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mpadam.stored import sha256

Split = Literal["train", "validation"]


@dataclass(frozen=True)
class TextShard:
    """A part of the text of one split.

    name: of its token files, e.g. `train-00000-of-01024`; the order of names is the order of the text.
    open: its documents as a stream, from the start. Raises ValueError where the text is not there or damaged.
    receipt: where the text came from, with its SHA-256.
    path: the file that holds it, None where there is none.
    facts: the part of the receipt that is known before the text is read; it differs for token files of another text.
    """

    name: str
    split: Split
    open: Callable[[], Iterator[str]]
    receipt: Callable[[], dict[str, Any]]
    path: Path | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def file_shard(name: str, split: Split, path: Path, documents: Callable[[Path], Iterator[str]]) -> TextShard:
    """The shard that a local file holds; `documents` reads the file."""
    facts = {"file": path.name, "bytes": path.stat().st_size}
    return TextShard(
        name, split, lambda: documents(path), lambda: {**facts, "sha256": sha256(path)}, path=path, facts=facts
    )
