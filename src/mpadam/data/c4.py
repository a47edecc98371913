"""A local folder in C4's own layout: `en/c4-train.NNNNN-of-01024.json.gz`, `en/c4-validation.*.json.gz`.

`data.train_shards` limits how many training shards of a larger copy are used, from the first on.

A line of a shard is a JSON object with `text` (and `url`, `timestamp`, which nothing here needs). Shards are read as
streams, one line at a time. Any fault in a shard ends the reading with a ValueError that names file and line, so that a
damaged shard is never taken for a shorter one.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from mpadam.data.text import Split, TextShard, file_shard
from mpadam.presence import entries, is_there
from mpadam.study.text import DataConfig

_NAME = re.compile(r"c4-(train|validation)\.([0-9]{5}-of-[0-9]{5})\.json\.gz")
_LAYOUT = "en/c4-train.00000-of-01024.json.gz and en/c4-validation.00000-of-00008.json.gz"
_AGAIN = "fetch the file again"


def identity(data: DataConfig) -> dict[str, Any]:
    """Names and sizes of the shards. The place of the folder and the dates of its files do not matter."""
    return {"shards": {shard.facts["file"]: shard.facts["bytes"] for shard in shards(data)}}


def shards(data: DataConfig) -> list[TextShard]:
    """The shards of both splits, in the order of their names.

    Raises ValueError when the folder is missing, or has no shard of a split, too few of them, or shards of copies that
    were cut differently.
    """
    assert data.path is not None
    folder = Path(data.path)
    if not is_there(folder) or not folder.is_dir():
        raise ValueError(f"data.path: there is no folder {folder}; it must hold {_LAYOUT}")
    found = [
        file_shard(f"{match[1]}-{match[2]}", cast(Split, match[1]), path, documents)
        for path in entries(folder / "en")
        if (match := _NAME.fullmatch(path.name))
    ]
    train, validation = (_of_split(split, found, folder) for split in ("train", "validation"))
    wanted = len(train) if data.train_shards is None else data.train_shards
    if wanted > len(train):
        raise ValueError(f"data.train_shards: {wanted} wanted, but {data.path} has {len(train)} training shards")
    return [*train[:wanted], *validation]


def _of_split(split: str, found: list[TextShard], folder: Path) -> list[TextShard]:
    """The shards of one split, which must be there and of one copy."""
    shards = [shard for shard in found if shard.split == split]
    if not shards:
        inside = " (path must name the folder above it)" if any(folder.glob("c4-*.json.gz")) else ""
        raise ValueError(f"data.path: {folder} has no file en/c4-{split}.*.json.gz{inside}; it must hold {_LAYOUT}")
    if len(totals := {shard.name.rpartition("-")[2] for shard in shards}) > 1:
        raise ValueError(
            f"data.path: {folder}/en mixes {split} shards of {' and '.join(sorted(totals))}: keep those of one copy"
        )
    return shards


def documents(path: Path) -> Iterator[str]:
    """The texts of a shard, in the order of the lines.

    Raises ValueError for a shard that is empty, no gzip, cut short or damaged, and for a line that is no document.
    """
    number = 0
    try:
        with gzip.open(path) as file:
            for line in file:
                number += 1
                yield _document(line, f"{path}: line {number}")
    except EOFError:
        raise ValueError(f"{path}: the file is cut short after line {number}; {_AGAIN}") from None
    except gzip.BadGzipFile as error:
        raise ValueError(f"{path}: no sound gzip file after line {number} ({error}); {_AGAIN}") from None
    except zlib.error as error:
        raise ValueError(f"{path}: damaged after line {number} ({error}); {_AGAIN}") from None
    if number == 0:
        raise ValueError(f"{path}: the file is empty; {_AGAIN}")


def _document(line: bytes, where: str) -> str:
    try:
        document = json.loads(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}); {_AGAIN}") from None
    text = document.get("text") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise ValueError(f'{where} has no text; a document is {{"text": "...", ...}}')
    return text
