"""allenai/c4 `en` from the hub, at a commit: shards that `mpadam download` has brought here, checked as they are read.

Which shards there are is known beforehand, so that a job can be planned for each before anything is fetched. Nothing
here opens a connection. A fetched shard lies in C4's own layout, its receipt beside:

    downloads/c4/en/c4-train.00000-of-01024.json.gz
    downloads/c4/receipts/train-00000-of-01024.json      commit, size, SHA-256, as the hub has them
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpadam.data.c4 import C4Text
from mpadam.data.text import Split, TextShard
from mpadam.presence import is_there
from mpadam.stored import stored
from mpadam.study.text import DataConfig

REPO = "allenai/c4"
SHARDS: dict[Split, int] = {"train": 1024, "validation": 8}


def identity(data: DataConfig) -> dict[str, Any]:
    """Which files of which commit: their content is then known."""
    return {"repo": REPO, "config": "en", "revision": data.revision, "train_shards": _train_shards(data)}


def shards(data: DataConfig) -> list[TextShard]:
    """The shards of both splits, in the order of their names, whether they are here yet or not."""
    counts: dict[Split, int] = {"train": _train_shards(data), "validation": SHARDS["validation"]}
    return [_shard(data, split, number) for split, count in counts.items() for number in range(count)]


def folder(data: DataConfig) -> Path:
    """Where shards and receipts are kept."""
    return Path(data.downloads) / "c4"


def receipt_path(data: DataConfig, name: str) -> Path:
    """The receipt of the shard `name`, e.g. train-00000-of-01024."""
    return folder(data) / "receipts" / f"{name}.json"


def _train_shards(data: DataConfig) -> int:
    count = SHARDS["train"] if data.train_shards is None else data.train_shards
    if count > SHARDS["train"]:
        raise ValueError(f"data.train_shards: {count} wanted, but {REPO} has {SHARDS['train']} training shards")
    return count


def _shard(data: DataConfig, split: Split, number: int) -> TextShard:
    place = f"{number:05d}-of-{SHARDS[split]:05d}"
    name, file = f"{split}-{place}", f"en/c4-{split}.{place}.json.gz"

    def reader(shard: TextShard) -> HubText:
        return HubText(shard, receipt_path(data, name))

    facts = {"repo": REPO, "revision": data.revision, "file": file}
    return TextShard(name, split, reader, folder(data) / file, facts)


class HubText:
    """The documents of a fetched shard, which must be what its receipt says."""

    def __init__(self, shard: TextShard, receipt: Path) -> None:
        assert shard.path is not None
        again = f"run  mpadam download --shard {shard.name}"
        if not is_there(receipt) or not is_there(shard.path):
            raise ValueError(f"{shard.path}: not here (or without its receipt, {receipt}); {again}  first")
        with stored(receipt, remedy=f"delete it; {again}"):
            self._receipt: dict[str, Any] = json.loads(receipt.read_bytes())
            others = any(self._receipt.get(key) != value for key, value in shard.facts.items())
        if others:
            raise ValueError(f"{receipt}: of commit {self._receipt.get('revision')}, not of data.revision; {again}")
        self._text, self._path, self._again = C4Text(shard), shard.path, again

    def __iter__(self) -> Iterator[str]:
        """Raises ValueError, after the last document, if the file is not the one that was fetched."""
        yield from self._text
        if (found := self._text.receipt()["sha256"]) != self._receipt["sha256"]:
            raise ValueError(
                f"{self._path}: its SHA-256 is {found}, the hub's file has {self._receipt['sha256']}; {self._again}"
            )

    def receipt(self) -> dict[str, Any]:
        return self._receipt
