"""Folders made by datasets.save_to_disk: the same tokens as from C4's layout, and what is wrong with one by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from data_samples import bpe, documents, prepared, quiet
from datasets import Dataset, DatasetDict

from mpadam.data.sources import source_identity, text_shards
from mpadam.data.stages import prepare
from mpadam.study.text import DataConfig

TEXTS = [*documents(120, seed=1), *documents(80, seed=2)]


def save(folder: Path, texts: list[Any], *, shards: int = 1) -> Path:
    table = Dataset.from_dict({"url": ["http://a.b"] * len(texts), "text": texts})
    table.save_to_disk(str(folder), num_shards=shards)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save(folder / "train", TEXTS, shards=2)
    save(folder / "validation", documents(40, seed=3))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """An own copy, for a test that damages it."""
    return shutil.copytree(saved, tmp_path / "saved")


def config(folder: Path, **changes: Any) -> DataConfig:
    paths = {"path_train": str(folder / "train"), "path_validation": str(folder / "validation")}
    return DataConfig.model_validate(
        {"source": "saved_dataset", **paths, "sequences": "pack", "sequence_length": 16, **changes}
    )


def test_the_same_tokens_as_from_c4s_layout(saved: Path, tmp_path: Path) -> None:
    manifest = prepare(config(saved), bpe(), tmp_path / "saved", log=quiet)
    same = prepared(tmp_path / "c4").manifest
    assert manifest["tokenizer_fingerprint"] == same["tokenizer_fingerprint"]
    assert [shard["name"] for shard in manifest["shards"]] == [
        "train-00000-of-00002",
        "train-00001-of-00002",
        "validation-00000-of-00001",
    ]
    for counts in ("train", "validation"):
        assert manifest[counts] == same[counts]
    joined = {}
    for name in ("saved", "c4/data"):
        shards = sorted((tmp_path / name / "tokens").glob("train-*"))
        joined[name] = b"".join((shard / "tokens.bin").read_bytes() for shard in shards)
    assert joined["saved"] == joined["c4/data"]


def test_receipts_have_the_files_checksums(saved: Path, tmp_path: Path) -> None:
    import hashlib

    manifest = prepare(config(saved), bpe(), tmp_path / "data", log=quiet)
    source = manifest["shards"][1]["source"]
    path = saved / "train" / "data-00001-of-00002.arrow"
    assert source == {
        "file": path.name,
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def test_identity_stays_with_place_and_dates_and_changes_with_the_table(saved: Path, folder: Path) -> None:
    before = source_identity(config(saved))
    assert source_identity(config(folder)) == before
    save(folder / "validation", documents(40, seed=4))
    assert source_identity(config(folder)) != before


def test_a_table_of_several_record_batches_is_read_whole(folder: Path) -> None:
    path = folder / "validation" / "data-00000-of-00001.arrow"
    write_stream(path, [["one", "two"], [], ["three"]])
    assert list(shard(folder, "validation").open()) == ["one", "two", "three"]


def write_stream(path: Path, batches: list[list[str | None]], *, column: str = "text", end: bool = True) -> None:
    schema = pa.schema([("url", pa.string()), (column, pa.large_string())])
    with path.open("wb") as file:
        writer = pa.ipc.new_stream(file, schema)
        for texts in batches:
            urls, values = pa.array([None] * len(texts), pa.string()), pa.array(texts, pa.large_string())
            writer.write_batch(pa.record_batch([urls, values], schema))
        if end:
            writer.close()


def shard(folder: Path, split: str) -> Any:
    return next(shard for shard in text_shards(config(folder)) if shard.split == split)


def test_d3_a_stream_cut_between_two_batches_is_no_shorter_text(folder: Path) -> None:
    """D3: Arrow itself reads such a file without a word."""
    path = folder / "validation" / "data-00000-of-00001.arrow"
    write_stream(path, [["one"], ["two"]], end=False)
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 2
    with pytest.raises(ValueError, match=r"data-00000-of-00001.arrow: the file is cut short"):
        list(shard(folder, "validation").open())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def cut_with_an_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700] + b"\xff\xff\xff\xff\0\0\0\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another_column(path: Path) -> None:
    write_stream(path, [["one"]], column="content")


def a_null(path: Path) -> None:
    write_stream(path, [["one", None]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "cut short"),
        (empty, "cut short"),
        (cut_with_an_end, "damaged after row 0"),
        (another_column, "no column 'text', only url, content"),
        (a_null, "row 2 has no text, but NoneType"),
    ],
)
def test_d3_a_broken_file_is_named_and_leaves_nothing(damage: Any, message: str, folder: Path, tmp_path: Path) -> None:
    path = folder / "validation" / "data-00000-of-00001.arrow"
    damage(path)
    with pytest.raises(ValueError, match=message) as caught:
        prepare(config(folder), bpe(), tmp_path / "data", log=quiet)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "train" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(ValueError, match=r"path_train: .*data-00001-of-00002.arrow is missing"):
        source_identity(config(folder))


def test_a_folder_of_several_splits_is_explained(tmp_path: Path) -> None:
    table = Dataset.from_dict({"text": ["one"]})
    DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "train"))
    with pytest.raises(ValueError, match=r"holds several splits \(train, test\); name one, e.g.  path_train: .*/train"):
        source_identity(config(tmp_path))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "has no readable state.json"),
        ("{", "has no readable state.json"),
        ('{"_data_files": []}', "names no files"),
        ('{"_data_files": [{"filename": "a"}], "_indices_files": [{"filename": "i"}]}', "call  flatten_indices"),
    ],
)
def test_a_folder_that_is_something_else(state: str | None, message: str, folder: Path) -> None:
    (folder / "train" / "state.json").unlink()
    if state is not None:
        (folder / "train" / "state.json").write_text(state)
    with pytest.raises(ValueError, match=message):
        source_identity(config(folder))
