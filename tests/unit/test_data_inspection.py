"""mpadam data inspect: what it prints, against counts made here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from data_samples import documents, own_encoding, prepared, write_c4

from mpadam import cli
from mpadam.data import TokenData
from mpadam.data.inspection import inspection

TRAIN = [*documents(120, seed=1), *documents(80, seed=2)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    return prepared(tmp_path_factory.mktemp("inspect"), sequences="truncate_pad", sequence_length=64)


def test_counts_and_padding(data: TokenData) -> None:
    text = inspection(data.folder, sequences=1, seed=0)
    encoded = own_encoding(data.folder, TRAIN)
    tokens, filled = sum(map(len, encoded)), sum(min(64, len(ids)) for ids in encoded)
    assert f"train: 200 documents of 200 read (0 empty, 0 duplicates), {tokens:,} tokens" in text
    assert (
        f"train: 200 sequences, 12,800 positions, {1 - filled / 12_800:.1%} padding, {filled - 200:,} targets" in text
    )
    assert data.manifest["fingerprint"] in text
    assert "sequences: truncate_pad, 64 positions" in text


def test_histogram_has_every_document_once(data: TokenData) -> None:
    bars = re.findall(r"^ *([\d,]+) to ([\d,]+) +([\d,]+) ?(#*)$", inspection(data.folder, sequences=1, seed=0), re.M)
    lengths = [len(ids) for ids in own_encoding(data.folder, TRAIN)]
    for low, high, count, _ in bars:
        assert int(count) == sum(int(low) <= length <= int(high) for length in lengths)
    assert sum(int(count) for *_, count, _ in bars) == 200
    assert max(len(bar) for *_, bar in bars) == 50


def test_sequences_are_the_first_that_a_seed_reads_decoded(data: TokenData) -> None:
    text = inspection(data.folder, sequences=4, seed=3)
    shown = re.findall(r"^\[(\d+)\] (\d+) of 64 positions: (.*)$", text, re.M)
    assert len(shown) == 4
    for index, filled, line in shown:
        length = len(own_encoding(data.folder, [TRAIN[int(index)]])[0])
        assert int(filled) == min(64, length)
        if length <= 64:
            assert line == repr(TRAIN[int(index)] + "</s>")
    assert text != inspection(data.folder, sequences=4, seed=4)


def test_a_long_sequence_is_shown_on_one_short_line(tmp_path: Path) -> None:
    write_c4(tmp_path / "text", train=[["line\n" * 1000, *documents(60)]])
    data = prepared(tmp_path, sequences="truncate_pad", sequence_length=4000)
    lines = inspection(data.folder, sequences=61, seed=0).splitlines()
    (line,) = [line for line in lines if line.startswith("[0]")]
    assert " ... " in line
    assert len(line) < 500


def test_command(data: TokenData, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "inspect", "--out", str(data.folder), "--sequences", "2", "--seed", "3"]) == 0
    assert capsys.readouterr().out == inspection(data.folder, sequences=2, seed=3) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "inspect", "--out", "nowhere"], "nowhere: no manifest.json, so this is no prepared data"),
        (["data", "--out", "nowhere"], "say which study:  --config FILE"),
        (["data", "--request", "{}", "--out", "nowhere", "--workers", "0"], "--workers 0: at least 1"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_sequences_is_a_mistake(data: TokenData) -> None:
    with pytest.raises(ValueError, match="--sequences 0: at least 1"):
        inspection(data.folder, sequences=0, seed=0)
