"""allenai/c4 `en` from the hub, at a commit: shards that `mpadam download` has fetched, checked before they are read.

Which shards exist is known beforehand, so that a job can be planned for each before anything is fetched. Nothing here
opens a connection. A fetched shard is kept in C4's own layout, next to the folder of receipts:

    downloads/c4/en/c4-train.00000-of-01024.json.gz
    downloads/c4/receipts/train-00000-of-01024.json      commit, size, SHA-256, as the hub has them
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpadam.data import c4
from mpadam.data.text import Split, TextShard
from mpadam.presence import is_there
from mpadam.stored import read_object, sha256
from mpadam.study.text import DataConfig

REPO = "allenai/c4"
SHARDS: dict[Split, int] = {"train": 1024, "validation": 8}


def identity(data: DataConfig) -> dict[str, Any]:
    """Which files of which commit, which determines their content."""
    return {"repo": REPO, "config": "en", "revision": data.revision, "train_shards": _counts(data)["train"]}


def shards(data: DataConfig) -> list[TextShard]:
    """The shards of both splits, in the order of their names, whether they have been fetched or not."""
    return [_shard(data, split, number) for split, count in _counts(data).items() for number in range(count)]


def receipt_path(data: DataConfig, name: str) -> Path:
    """The receipt of the shard `name`, e.g. train-00000-of-01024."""
    return Path(data.downloads) / "c4" / "receipts" / f"{name}.json"


def _counts(data: DataConfig) -> dict[Split, int]:
    train = SHARDS["train"] if data.train_shards is None else data.train_shards
    if train > SHARDS["train"]:
        raise ValueError(f"data.train_shards: {train} wanted, but {REPO} has {SHARDS['train']} training shards")
    return {**SHARDS, "train": train}


def _shard(data: DataConfig, split: Split, number: int) -> TextShard:
    place = f"{number:05d}-of-{SHARDS[split]:05d}"
    name, file = f"{split}-{place}", f"en/c4-{split}.{place}.json.gz"
    path, receipt = Path(data.downloads) / "c4" / file, receipt_path(data, name)
    facts = {"repo": REPO, "revision": data.revision, "file": file}
    again = f"run  mpadam download --shard {name}"

    def read_receipt() -> dict[str, Any]:
        content = read_object(receipt, remedy=f"delete it; {again}")
        if not content or not is_there(path):
            raise ValueError(f"{path}: not here (or without its receipt, {receipt}); {again}  first")
        if any(content.get(key) != value for key, value in facts.items()):
            raise ValueError(f"{receipt}: of commit {content.get('revision')}, not of data.revision; {again}")
        return content

    def documents() -> Iterator[str]:
        expected = read_receipt().get("sha256")
        if (found := sha256(path)) != expected:
            raise ValueError(f"{path}: its SHA-256 is {found}, the hub's file has {expected}; {again}")
        return c4.documents(path)

    return TextShard(name, split, documents, read_receipt, path, facts)
