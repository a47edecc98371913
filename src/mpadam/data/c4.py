"""A local folder in C4's own layout: `en/c4-train.NNNNN-of-01024.json.gz`, `en/c4-validation.*.json.gz`.

`data.train_shards` takes the first so many training shards of a larger copy.

A line of a shard is a JSON object with `text` (and `url`, `timestamp`, which nothing here needs). Shards are read as
streams, a line at a time. Whatever is wrong with one ends the reading with a ValueError that names file and line: a
shard is never taken for a shorter one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from mpadam.data.text import Split, TextShard
from mpadam.presence import entries, is_there
from mpadam.study.text import DataConfig

_NAME = re.compile(r"c4-(train|validation)\.([0-9]{5}-of-[0-9]{5})\.json\.gz")
_LAYOUT = "en/c4-train.00000-of-01024.json.gz and en/c4-validation.00000-of-00008.json.gz"


def identity(data: DataConfig) -> dict[str, Any]:
    """Names and sizes of the shards. Where the folder lies, and when its files were touched, does not matter."""
    return {"shards": {shard.facts["file"]: shard.facts["bytes"] for shard in shards(data)}}


def shards(data: DataConfig) -> list[TextShard]:
    """The shards of both splits, in the order of their names.

    Raises ValueError when the folder is missing, or has no shard of a split, too few of them, or shards of differently
    cut copies.
    """
    assert data.path is not None
    folder = Path(data.path)
    if not is_there(folder) or not folder.is_dir():
        raise ValueError(f"data.path: there is no folder {folder}; it must hold {_LAYOUT}")
    found = [_shard(path, match) for path in entries(folder / "en") if (match := _NAME.fullmatch(path.name))]
    for split in ("train", "validation"):
        names = [shard.name for shard in found if shard.split == split]
        if not names:
            inside = " (path must name the folder above it)" if any(folder.glob("c4-*.json.gz")) else ""
            raise ValueError(f"data.path: {folder} has no file en/c4-{split}.*.json.gz{inside}; it must hold {_LAYOUT}")
        if len(totals := {name.rpartition("-")[2] for name in names}) > 1:
            raise ValueError(
                f"data.path: {folder}/en mixes {split} shards of {' and '.join(sorted(totals))}: keep those of one copy"
            )
    return _first(found, data)


def _first(found: list[TextShard], data: DataConfig) -> list[TextShard]:
    train = [shard for shard in found if shard.split == "train"]
    wanted = len(train) if data.train_shards is None else data.train_shards
    if wanted > len(train):
        raise ValueError(f"data.train_shards: {wanted} wanted, but {data.path} has {len(train)} training shards")
    return [*train[:wanted], *(shard for shard in found if shard.split == "validation")]


def _shard(path: Path, match: re.Match[str]) -> TextShard:
    facts = {"file": path.name, "bytes": path.stat().st_size}
    return TextShard(f"{match[1]}-{match[2]}", cast(Split, match[1]), C4Text, path, facts)


class C4Text:
    """The documents of one shard."""

    def __init__(self, shard: TextShard) -> None:
        assert shard.path is not None
        self._path = shard.path
        self._sha256 = hashlib.sha256()

    def __iter__(self) -> Iterator[str]:
        """Texts in the order of the lines.

        Raises ValueError for a shard that is empty, no gzip, cut short or damaged, and for a line that is no document.
        """
        self._sha256 = hashlib.sha256()
        number = 0
        try:
            with (
                self._path.open("rb") as raw,
                gzip.GzipFile(fileobj=cast(IO[bytes], _Hashed(raw, self._sha256))) as file,
            ):
                for line in file:
                    number += 1
                    yield self._document(line, number)
        except EOFError:
            raise ValueError(f"{self._path}: the file is cut short after line {number}; {_AGAIN}") from None
        except gzip.BadGzipFile as error:
            raise ValueError(f"{self._path}: no sound gzip file after line {number} ({error}); {_AGAIN}") from None
        except zlib.error as error:
            raise ValueError(f"{self._path}: damaged after line {number} ({error}); {_AGAIN}") from None
        if number == 0:
            raise ValueError(f"{self._path}: the file is empty; {_AGAIN}")

    def receipt(self) -> dict[str, Any]:
        return {"file": self._path.name, "bytes": self._path.stat().st_size, "sha256": self._sha256.hexdigest()}

    def _document(self, line: bytes, number: int) -> str:
        try:
            document = json.loads(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._path}: line {number} is not JSON ({error}); {_AGAIN}") from None
        text = document.get("text") if isinstance(document, dict) else None
        if not isinstance(text, str):
            raise ValueError(f'{self._path}: line {number} has no text; a document is {{"text": "...", ...}}')
        return text


_AGAIN = "fetch the file again"


class _Hashed:
    """A binary file whose bytes are hashed as they are read."""

    def __init__(self, file: IO[bytes], digest: Any) -> None:
        self._file = file
        self._digest = digest

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._digest.update(block)
        return block
