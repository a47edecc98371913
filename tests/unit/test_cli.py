"""The command line: a study by its name, what is suggested for a mistyped word, what an overlay lacks, prices."""

import errno
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from mpadam.arguments import config_of
from mpadam.cli import build_parser, main

ROOT = Path(__file__).parents[2]
FILES = ["--config", str(ROOT / "config.yaml"), "--config"]
OVERLAYS = sorted((ROOT / "studies").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "plan"])
def test_i21_a_study_is_known_by_its_name(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ("--results", str(tmp_path))
    for overlay in OVERLAYS:
        by_files = printed(capsys, command, *FILES, str(overlay), *results)
        assert printed(capsys, command, overlay.stem, *results) == by_files
    assert printed(capsys, command, "paper", *results) == printed(capsys, command, *FILES[:2], *results)


@pytest.mark.parametrize("command", ["aggregate", "claims", "plan", "probes", "site", "status"])
def test_i21_every_command_that_reads_a_study_knows_it_by_name(command: str) -> None:
    for overlay in OVERLAYS:
        named, by_files = ([command, overlay.stem], [command, *FILES, str(overlay)])
        assert config_of(build_parser().parse_args(named)) == config_of(build_parser().parse_args(by_files))


def test_i21_an_unknown_study_is_answered_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "smok"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mpadam status: smok: not one of paper, ")
    assert all(overlay.stem in error for overlay in OVERLAYS)
    assert "--config A --config B" in error


def test_i21_a_name_in_another_folder_says_where_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status", "smoke"]) == 2
    assert "no config.yaml here; start in the repository" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["smoke", "--config", "config.yaml"]])
def test_a_study_is_given_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["status", *words])
    assert left.value.code == 2
    assert "STUDY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["statsu"], "status"),
        (["trian", "--run-dir", "here"], "train"),
        (["diagnose", "capabilites", "--out", "there"], "capabilities"),
        (["data", "inspct"], "inspect"),
        (["site", "smoke", "--view", "papr"], "paper"),
        (["status", "--jsn"], "--json"),
        (["status", "smoke", "--jsn"], "--json"),
        (["plan", "smoke", "--price-per-gpu-huor=2"], "--price-per-gpu-hour"),
        (["--verison"], "--version"),
    ],
)
def test_i21_a_mistyped_word_is_answered_with_the_one_that_may_be_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_a_word_that_is_like_no_other_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
@pytest.mark.parametrize("command", ["status", "claims"])
def test_i21_an_overlay_alone_says_what_comes_before_it(
    command: str, overlay: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--config", str(overlay)]) == 2
    assert f"the study that it changes first:  --config config.yaml --config {overlay}\n" in capsys.readouterr().err


def test_a_key_that_an_overlay_lacks_after_its_study_is_no_matter_of_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("models: {tiny: {hidden_size: 64}}\n")
    assert main(["status", *FILES, str(overlay)]) == 2
    error = capsys.readouterr().err
    assert "models.tiny" in error
    assert "required and missing" in error
    assert "first:" not in error


# --- prices ----------------------------------------------------------------------------------------------------------


def test_i21_a_plan_has_prices_where_the_price_of_an_hour_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the whole study in its first line, of each grid and of one run."""
    content = json.loads(printed(capsys, "plan", "one-cell", "--price-per-gpu-hour", "1000", "--json"))
    text = printed(capsys, "plan", "one-cell", "--price-per-gpu-hour", "1000")
    assert content["price"] == 1000
    whole, run = (f"{1000 * content[part]['hours']:,.0f}" for part in ("total",)), content["budgets"][0]["hours"]
    (total,) = whole
    assert f", {total} at 1000 per GPU-hour\n" in text
    lines = [line.split() for line in text.splitlines()]
    heads = [line.index("price") for line in lines if "price" in line]
    assert len(heads) == 2
    grids, budgets = (lines[at + 1] for at, line in enumerate(lines) if "price" in line)
    assert grids[heads[0]] == total
    assert budgets[heads[1] - 1] == f"{1000 * run:,.0f}", "the column before is 'one run', two words"
    assert "price" not in printed(capsys, "plan", "one-cell")


@pytest.mark.parametrize("price", ["0", "-1", "nan", "inf"])
def test_a_price_is_a_number_above_zero(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "one-cell", f"--price-per-gpu-hour={price}"]) == 2
    assert "give a number above 0, e.g.  --price-per-gpu-hour 2.5" in capsys.readouterr().err


def test_a_study_on_cpus_has_no_price_of_a_gpu_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smoke", "--price-per-gpu-hour", "2.5"]) == 2
    assert "smoke trains on CPUs" in capsys.readouterr().err


def test_i16_a_reader_that_leaves_ends_a_command_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`mpadam plan paper | true`: the code of SIGPIPE, as of other programs."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        assert main(["plan", "paper"]) == 128 + signal.SIGPIPE
    assert capfd.readouterr().err == ""


def test_i16_a_command_without_an_output_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it after  mpadam ... >&-
    assert main(["plan", "paper"]) == 0


def test_i16_another_broken_pipe_is_a_failure_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tracker's socket, a compiler's worker: not the reader of standard output."""

    def breaks(config: object, folder: object, **_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("mpadam.plan.plan.make_plan", breaks)
    with Path(os.devnull).open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["plan", "paper"]) == 2
    assert "Broken pipe" in capfd.readouterr().err
