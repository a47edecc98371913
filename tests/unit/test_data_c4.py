"""Folders in C4's layout: reading, odd documents, and every kind of broken file."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from data_samples import bpe, c4_config, documents, files_below, own_encoding, prepared, quiet, write_c4, write_shard

from mpadam import cli
from mpadam.data import TokenData
from mpadam.data.sources import source_identity, text_shards
from mpadam.data.stages import prepare

TRAIN = "en/c4-train.00001-of-01024.json.gz"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def cut_in_the_middle(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def compressed_nothing(path: Path) -> None:
    path.write_bytes(gzip.compress(b""))


def web_page(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html><body>429 Too Many Requests</body></html>")


def compressed_web_page(path: Path) -> None:
    path.write_bytes(gzip.compress(b"<!DOCTYPE html>\n<html></html>\n"))


def one_byte_wrong(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def rewritten(line: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        path.write_bytes(gzip.compress(b"".join([*lines[:2], line + b"\n", *lines[3:]])))

    return change


FAULTS = {
    "cut short": (cut, "cut short"),
    "cut in the middle": (cut_in_the_middle, "cut short|damaged"),
    "empty": (empty, "empty"),
    "compressed nothing": (compressed_nothing, "empty"),
    "web page": (web_page, "no sound gzip file"),
    "compressed web page": (compressed_web_page, "line 1 is not JSON"),
    "one byte wrong": (one_byte_wrong, "damaged|gzip|line [0-9]+"),
    "half a line": (rewritten(b'{"text": "abc'), "line 3 is not JSON"),
    "no text": (rewritten(b'{"url": "http://a.b"}'), "line 3 has no text"),
    "text is a number": (rewritten(b'{"text": 3}'), "line 3 has no text"),
    "a list": (rewritten(b'["text"]'), "line 3 has no text"),
    "blank line": (rewritten(b""), "line 3 is not JSON"),
    "no UTF-8": (rewritten(b'{"text": "\xff\xfe"}'), "line 3 is not JSON"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shard", [TRAIN, "en/c4-validation.00000-of-00008.json.gz"])
def test_d3_broken_shard_is_one_line_with_its_name_and_leaves_nothing(
    fault: str, shard: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D3: a broken shard fails the command, naming the file; never just fewer tokens."""
    text, out = write_c4(tmp_path / "text"), tmp_path / "results" / "data"
    change, message = FAULTS[fault]
    change(text / shard)
    request = {"data": c4_config(text).model_dump(), "tokenizer": bpe().model_dump()}
    assert cli.main(["data", "--request", json.dumps(request), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(text / shard) in error
    assert re.search(message, error)
    assert not out.exists()


def test_d3_earlier_data_survives_a_broken_shard(tmp_path: Path) -> None:
    """D3: a failed preparation leaves what was there as it was."""
    prepared(tmp_path)
    before = files_below(tmp_path / "data")
    cut(tmp_path / "text" / TRAIN)
    with pytest.raises(ValueError, match="cut short"):
        prepare(c4_config(tmp_path / "text", sequence_length=32), bpe(), tmp_path / "data", log=quiet)
    assert files_below(tmp_path / "data") == before


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.path: there is no folder .*nowhere.*must hold en/c4-train"):
        source_identity(c4_config(tmp_path / "nowhere"))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_no_shard_of_a_split(split: str, tmp_path: Path) -> None:
    text = write_c4(tmp_path)
    for path in text.glob(f"en/c4-{split}*"):
        path.unlink()
    with pytest.raises(ValueError, match=rf"has no file en/c4-{split}\.\*\.json\.gz"):
        text_shards(c4_config(text))


def test_path_one_level_too_deep_is_explained(tmp_path: Path) -> None:
    text = write_c4(tmp_path)
    with pytest.raises(ValueError, match="path must name the folder above it"):
        text_shards(c4_config(text / "en"))


def test_shards_of_differently_cut_copies_are_refused(tmp_path: Path) -> None:
    text = write_c4(tmp_path)
    write_shard(text, "train.00000-of-00512", documents(3))
    with pytest.raises(ValueError, match="mixes train shards of 00512 and 01024"):
        text_shards(c4_config(text))


def test_shards_come_in_order_and_other_files_do_not_matter(tmp_path: Path) -> None:
    text = write_c4(tmp_path)
    (text / "en" / "c4-train.00000-of-01024.json.gz.lock").write_text("")
    (text / "README.md").write_text("")
    names = [shard.name for shard in text_shards(c4_config(text))]
    assert names == ["train-00000-of-01024", "train-00001-of-01024", "validation-00000-of-00008"]


def test_identity_is_names_and_sizes(tmp_path: Path) -> None:
    text = write_c4(tmp_path / "a")
    before = source_identity(c4_config(text))
    os.utime(text / TRAIN, (1, 1))
    moved = text.rename(tmp_path / "b")
    assert source_identity(c4_config(moved)) == before
    write_shard(moved, "train.00001-of-01024", documents(81, seed=2))
    assert source_identity(c4_config(moved)) != before


def test_a_shard_is_read_as_a_stream(tmp_path: Path) -> None:
    """The first document is there although the end of the file is missing."""
    path = write_shard(tmp_path, "train.00000-of-01024", documents(5000))
    write_shard(tmp_path, "validation.00000-of-00008", documents(3))
    cut(path)
    stream = iter(text_shards(c4_config(tmp_path))[0].open())
    assert next(stream) == documents(1)[0]
    with pytest.raises(ValueError, match=r"cut short after line [0-9]+"):
        list(stream)


def test_odd_documents_neither_crash_nor_vanish_uncounted(tmp_path: Path) -> None:
    """Lone surrogates, NUL, empty documents, a word of a megabyte."""
    odd = ["a \ud800 b", "nul \x00 inside", "", "  \n ", "x" * 1_000_000, "the end </s> is not here <pad>", "日本語 😀"]
    write_c4(tmp_path / "text", train=[[*odd, *documents(50, seed=1)]])
    data = prepared(tmp_path)
    counts = data.manifest["train"]
    assert (counts["read"], counts["documents"], counts["empty"], counts["repaired"]) == (57, 55, 2, 1)
    whole = ["a \ufffd b", "nul \x00 inside", "x" * 1_000_000, "the end </s> is not here <pad>", "日本語 😀"]
    assert counts["text_bytes"] == sum(len(text.encode()) for text in [*whole, *documents(50, seed=1)])
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data.folder / "tokenizer" / "tokenizer.json"))
    read = [data.train.document(index).tolist() for index in range(5)]
    assert [ids.count(1) for ids in read] == [1] * 5  # one separator, although a text says </s>
    assert [tokenizer.decode(ids[:-1], skip_special_tokens=False) for ids in read] == whole


def test_split_surrogate_pairs_are_one_character(tmp_path: Path) -> None:
    path = tmp_path / "text" / "en" / "c4-train.00000-of-01024.json.gz"
    write_c4(tmp_path / "text", train=[documents(60)])
    lines = gzip.decompress(path.read_bytes()) + b'{"text": "smile \\ud83d\\ude00."}\n'
    path.write_bytes(gzip.compress(lines))
    data = prepared(tmp_path)
    assert data.manifest["train"]["repaired"] == 0
    assert data.train.document(60).tolist() == own_encoding(data.folder, ["smile 😀."])[0]


def test_documents_of_validation_are_dropped_from_training_and_counted(tmp_path: Path) -> None:
    shared = documents(40, seed=3)[:5]
    train = documents(100, seed=1)
    write_c4(tmp_path / "text", train=[[shared[0], *train, shared[1], shared[1]], [*shared, *documents(9, seed=4)]])
    data = prepared(tmp_path)
    counts = data.manifest["train"]
    assert (counts["read"], counts["duplicates"], counts["documents"]) == (117, 8, 109)
    assert data.manifest["validation"]["documents"] == 40
    encoded = own_encoding(data.folder, [*train, *documents(9, seed=4)])
    assert [data.train.document(i).tolist() for i in range(data.train.documents)] == encoded


def test_validation_text_does_not_shape_the_tokenizer(tmp_path: Path) -> None:
    """Text that training drops teaches the tokenizer nothing either."""
    shared = ["zyzzyva " * 50]
    write_c4(tmp_path / "a" / "text", train=[[*documents(100), *shared]], validation=[*shared, *documents(9, seed=8)])
    write_c4(tmp_path / "b" / "text", train=[documents(100)], validation=[*shared, *documents(9, seed=8)])
    fingerprints = {prepared(tmp_path / name).manifest["tokenizer_fingerprint"] for name in ("a", "b")}
    assert len(fingerprints) == 1


def test_nothing_left_to_train_on(tmp_path: Path) -> None:
    write_c4(tmp_path, train=[documents(40, seed=3)], validation=documents(40, seed=3))
    with pytest.raises(ValueError, match=r"no train document is left"):
        prepare(c4_config(tmp_path), bpe(258), tmp_path / "data", log=quiet)


def test_manifest_records_the_shards(tmp_path: Path) -> None:
    import hashlib

    data = prepared(tmp_path)
    for shard in data.manifest["shards"]:
        path = tmp_path / "text" / "en" / shard["source"]["file"]
        assert shard["source"]["bytes"] == path.stat().st_size
        assert shard["source"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert isinstance(data, TokenData)
    assert str(tmp_path) not in (data.folder / "manifest.json").read_text()
