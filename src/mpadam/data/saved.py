"""Folders made by `datasets.save_to_disk`, one of training and one of validation text, with a column `text`.

`datasets` keeps a table as Arrow streams, `data-NNNNN-of-NNNNN.arrow`, named by `state.json`. They are read here record
batch by record batch, a file a shard; memory does not grow with their size. A stream that breaks off between two
batches reads like a whole one, so the mark that ends it is looked for first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpadam.data.text import Split, TextShard
from mpadam.presence import is_there
from mpadam.study.text import DataConfig

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # Arrow's IPC format, "Streaming format"
_AGAIN = "save the dataset again with  save_to_disk"


def identity(data: DataConfig) -> dict[str, Any]:
    """Names and sizes of the files, and the fingerprint that `datasets` gives a table."""
    states = {key: _state(key, Path(path)) for key, path in _folders(data)}
    return {
        "fingerprints": {key: state.get("_fingerprint") for key, state in states.items()},
        "shards": {f"{shard.split}/{shard.facts['file']}": shard.facts["bytes"] for shard in shards(data)},
    }


def shards(data: DataConfig) -> list[TextShard]:
    """The files of both folders, in order.

    Raises ValueError when a folder or file is missing, or a folder holds something else.
    """
    found: list[TextShard] = []
    splits: tuple[Split, Split] = ("train", "validation")
    for split, (key, path) in zip(splits, _folders(data), strict=True):
        names = [entry["filename"] for entry in _state(key, Path(path))["_data_files"]]
        for number, name in enumerate(names):
            file = Path(path) / name
            if not is_there(file):
                raise ValueError(f"data.{key}: {file} is missing, which {path}/state.json names; {_AGAIN}")
            facts = {"file": name, "bytes": file.stat().st_size}
            found.append(TextShard(f"{split}-{number:05d}-of-{len(names):05d}", split, SavedText, file, facts))
    return found


def _folders(data: DataConfig) -> tuple[tuple[str, str], tuple[str, str]]:
    assert data.path_train is not None
    assert data.path_validation is not None
    return ("path_train", data.path_train), ("path_validation", data.path_validation)


def _state(key: str, folder: Path) -> dict[str, Any]:
    """The description that `save_to_disk` leaves beside its files."""
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


class SavedText:
    """The column `text` of one file."""

    def __init__(self, shard: TextShard) -> None:
        assert shard.path is not None
        self._path = shard.path

    def __iter__(self) -> Iterator[str]:
        """Raises ValueError for a file that is cut short or damaged, has no column `text`, or a row without text."""
        import pyarrow as pa

        self._check_end()
        row = 0
        try:
            with pa.memory_map(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
                self._check_columns(stream.schema)
                for batch in stream:
                    for text in batch.column(batch.schema.get_field_index("text")):
                        row += 1
                        yield self._text(text.as_py(), row)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._path}: row {row} is not UTF-8 ({error}); {_AGAIN}") from None
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{self._path}: damaged after row {row} ({error}); {_AGAIN}") from None

    def receipt(self) -> dict[str, Any]:
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        return {"file": self._path.name, "bytes": self._path.stat().st_size, "sha256": digest.hexdigest()}

    def _check_end(self) -> None:
        with self._path.open("rb") as file:
            file.seek(max(0, self._path.stat().st_size - len(_END_OF_STREAM)))
            if file.read() != _END_OF_STREAM:
                raise ValueError(f"{self._path}: the file is cut short; {_AGAIN}")

    def _check_columns(self, schema: Any) -> None:
        if "text" not in schema.names:
            names = ", ".join(schema.names)
            raise ValueError(f"{self._path}: no column 'text', only {names}; save untokenized text in that column")

    def _text(self, value: Any, row: int) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{self._path}: row {row} has no text, but {type(value).__name__}; {_AGAIN}")
        return value
