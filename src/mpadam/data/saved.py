"""Folders made by `datasets.save_to_disk`, one of training and one of validation text, with a column `text`.

`datasets` keeps a table as Arrow streams, `data-NNNNN-of-NNNNN.arrow`, which `state.json` lists. Each file is a shard,
which `datasets` maps into memory, so that memory does not grow with its size. A stream that breaks off between two
record batches reads like a complete one, so the mark that ends it is looked for first.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpadam.data.text import Split, TextShard, file_shard
from mpadam.presence import is_there
from mpadam.study.text import DataConfig

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # Arrow's IPC format, "Streaming format"
ROWS_AT_ONCE = 100  # in memory; ten times as fast as single rows
_AGAIN = "save the dataset again with  save_to_disk"
_KEYS: dict[Split, str] = {"train": "path_train", "validation": "path_validation"}  # of the section `data`


def identity(data: DataConfig) -> dict[str, Any]:
    """Names and sizes of the files, and the fingerprint that `datasets` gives a table."""
    return {
        "fingerprints": {key: _state(data, key).get("_fingerprint") for key in _KEYS.values()},
        "shards": {f"{shard.split}/{shard.facts['file']}": shard.facts["bytes"] for shard in shards(data)},
    }


def shards(data: DataConfig) -> list[TextShard]:
    """The files of both folders, in order.

    Raises ValueError when a folder or file is missing, or a folder holds something else.
    """
    found: list[TextShard] = []
    for split, key in _KEYS.items():
        folder, names = getattr(data, key), [entry["filename"] for entry in _state(data, key)["_data_files"]]
        for number, name in enumerate(names):
            file = Path(folder) / name
            if not is_there(file):
                raise ValueError(f"data.{key}: {file} is missing, which {folder}/state.json names; {_AGAIN}")
            found.append(file_shard(f"{split}-{number:05d}-of-{len(names):05d}", split, file, documents))
    return found


def _state(data: DataConfig, key: str) -> dict[str, Any]:
    """The description that `save_to_disk` leaves in the folder. Snakemake asks often: `datasets` is not imported."""
    folder = Path(getattr(data, key))
    if is_there(folder / "dataset_dict.json"):
        splits = ", ".join(json.loads((folder / "dataset_dict.json").read_bytes())["splits"])
        raise ValueError(f"data.{key}: {folder} holds several splits ({splits}); name one, e.g.  {key}: {folder}/train")
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
    except (FileNotFoundError, ValueError):
        raise ValueError(f"data.{key}: {folder} has no readable state.json; make it with  save_to_disk") from None
    if not state.get("_data_files"):
        raise ValueError(f"data.{key}: {folder}/state.json names no files; {_AGAIN}")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ValueError(f"data.{key}: {folder} is a selection by row numbers; call  flatten_indices  and {_AGAIN}")
    return state


def documents(path: Path) -> Iterator[str]:
    """The column `text` of one file.

    Raises ValueError for a file that is cut short or damaged, has no column `text`, or a row without text.
    """
    import pyarrow as pa
    from datasets import Dataset

    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(_END_OF_STREAM)))
        if file.read() != _END_OF_STREAM:
            raise ValueError(f"{path}: the file is cut short; {_AGAIN}")
    row = 0
    try:
        table = Dataset.from_file(str(path))
        if "text" not in table.column_names:
            names = ", ".join(table.column_names)
            raise ValueError(f"{path}: no column 'text', only {names}; save untokenized text in that column")
        for batch in table.select_columns("text").iter(ROWS_AT_ONCE):
            for text in batch["text"]:
                row += 1
                if not isinstance(text, str):
                    raise ValueError(f"{path}: row {row} has no text, but {type(text).__name__}; {_AGAIN}")
                yield text
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged after row {row} ({error}); {_AGAIN}") from None
