"""Reading the end of a file that somebody is writing."""

import json
from pathlib import Path

import pytest

from mpadam.study.run_folder import last_lines, last_records


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"one\n", ["one"]),
        (b"one\ntwo", ["one"]),
        (b"torn", []),
        (b"one\n\xff\xfe\n", ["one", "\ufffd\ufffd"]),
    ],
)
def test_whole_lines_only(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert last_lines(path) == expected


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none") == []
    with pytest.raises(IsADirectoryError):
        last_lines(tmp_path)


@pytest.mark.parametrize("window", [30, 37, 38, 39, 40, 41, 100, 10_000])
def test_only_the_end_is_read_and_no_line_is_cut(tmp_path: Path, window: int) -> None:
    """Lines of 8 to 10 bytes: what is found is a run of whole last lines that fits into the window."""
    lines = [f"line {number:>{3 + number % 3}}" for number in range(100)]
    path = tmp_path / "log"
    path.write_text("".join(line + "\n" for line in lines))
    found = last_lines(path, window=window)
    assert found == lines[len(lines) - len(found) :]
    missing = lines[: len(lines) - len(found)]
    bytes_found = sum(len(line) + 1 for line in found)
    assert bytes_found <= window + 1
    assert not missing or bytes_found + len(missing[-1]) + 1 > window


def test_what_is_no_json_object_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = [{"step": 1}, {"step": 2}]
    path.write_text(f'{json.dumps(good[0])}\n{{"step": 1\n17\n\n{json.dumps(good[1])}\n{{"step": 3')
    assert last_records(path) == good
