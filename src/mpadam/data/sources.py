"""Where text comes from: a registry of sources, by the name that `data.source` gives.

A source is two functions of the `data` section: `identity`, a cheap description that changes when the text does
(Snakemake asks for it at each parse; it opens no text and imports nothing heavy), and `shards`, the text itself.
To add a source: write a module with these two functions and enter it in `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpadam.data import builtin, c4, c4_hub, saved
from mpadam.data.text import TextShard
from mpadam.study.text import DataConfig


@dataclass(frozen=True)
class Source:
    identity: Callable[[DataConfig], dict[str, Any]]
    shards: Callable[[DataConfig], list[TextShard]]


SOURCES: dict[str, Source] = {
    "builtin": Source(builtin.identity, builtin.shards),
    "c4_folder": Source(c4.identity, c4.shards),
    "c4_hub": Source(c4_hub.identity, c4_hub.shards),
    "saved_dataset": Source(saved.identity, saved.shards),
}


def source_identity(data: DataConfig) -> dict[str, Any]:
    """What the text is, without reading it: equal when the text is, whenever the files were touched.

    For folders names and sizes of the files, for `c4_hub` commit and shards, for `builtin` versions and checksum.
    Raises ValueError when a folder or shard is missing.
    """
    return {"source": data.source, **SOURCES[data.source].identity(data)}


def text_shards(data: DataConfig) -> list[TextShard]:
    """All shards of the study's text, in order; a job can take one alone."""
    return SOURCES[data.source].shards(data)
