"""The sources of text: a registry, by the name that `data.source` gives.

A source is two functions of the `data` section: `identity`, a description that changes when the text does (computed at
each parse of the workflow, so it opens no text and imports nothing heavy), and `shards`, the text itself. To add a
source, write a module with these two functions and enter it in `SOURCES`.
"""

from types import ModuleType
from typing import Any

from mpadam.data import builtin, c4, c4_hub, saved
from mpadam.data.text import TextShard
from mpadam.study.text import DataConfig

SOURCES: dict[str, ModuleType] = {"builtin": builtin, "c4_folder": c4, "c4_hub": c4_hub, "saved_dataset": saved}


def source_identity(data: DataConfig) -> dict[str, Any]:
    """A description of the text, made without reading it: equal for equal text, whatever the dates of its files.

    It holds the names and sizes of a folder's files, the commit and shards of `c4_hub`, or the versions and checksum of
    `builtin`. Raises ValueError when a folder or shard is missing.
    """
    return {"source": data.source, **SOURCES[data.source].identity(data)}


def text_shards(data: DataConfig) -> list[TextShard]:
    """All shards of the study's text, in order; one job can read a single one."""
    return SOURCES[data.source].shards(data)
