"""A study whose runs are in an archive is read like one with folders, and a damaged archive is told in one line."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from analysis_fakes import FakeStudy, fake_study

from mpadam.cli import main
from mpadam.study.archive import ARCHIVE, SUMS, pack, unpack

RUN = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "adamw", "seed": 1}
COMMANDS = ("aggregate", "probes", "claims", "site", "status", "plan")


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    """Sixteen runs, one of them diverged and one missing."""
    study = fake_study(tmp_path / "results", grids=[{"name": "one", "models": ["tiny"]}])
    study.diverge(**{**RUN, "seed": 0})
    study.remove(**{**RUN, "budget": 2})
    return study


@pytest.fixture
def kept(study: FakeStudy, tmp_path: Path) -> Path:
    """The folder of the same study with its runs in an archive."""
    assert main(["keep", str(study.paths.root), str(tmp_path / "kept" / study.config.study)]) == 0
    return tmp_path / "kept" / study.config.study


def of(study: FakeStudy, results: Path) -> list[str]:
    return ["--config", str(study.config_file), "--results", str(results)]


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_the_same_of_a_study_in_an_archive(
    study: FakeStudy, kept: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for root in (study.paths.root, kept):
        assert main([command, *of(study, root.parent)]) == 0
        said.append("".join(capsys.readouterr()).replace(str(root), "ROOT"))
    assert said[0] == said[1]
    assert not (kept / "runs").exists()
    for part in ("tables", "figures", "claims.json"):
        assert files(kept / part) == files(study.paths.root / part)


def test_a_refused_run_in_an_archive_is_named_by_its_place_in_the_study(
    study: FakeStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checksums of a run's records are verified there, too."""
    with (study.folder(**RUN) / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    assert main(["keep", str(study.paths.root), str(tmp_path / "kept" / study.config.study)]) == 0
    capsys.readouterr()
    assert main(["aggregate", *of(study, tmp_path / "kept")]) == 3
    place = tmp_path / "kept" / study.config.study / study.folder(**RUN).relative_to(study.paths.root)
    assert f"refused: {place}/summary.json: metrics.jsonl next to it is not the one" in capsys.readouterr().err


def test_folders_come_before_the_archive(study: FakeStudy, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(study.paths.root / "runs", kept / "runs")
    shutil.copytree(study.paths.root / "tuning", kept / "tuning")
    shutil.rmtree(kept / study.folder(**RUN).relative_to(study.paths.root))
    capsys.readouterr()
    assert main(["status", *of(study, kept.parent)]) == 0
    assert "16 runs: 13 done, 1 diverged, 2 waiting" in capsys.readouterr().out


def test_the_same_files_give_the_same_archive_whenever_and_in_whatever_order_they_were_written(tmp_path: Path) -> None:
    names = ("runs/b/summary.json", "runs/a/summary.json", "tuning/selected.yaml")
    for place, order, date in (("one", names, 10**9), ("two", names[::-1], 1.5 * 10**9)):
        for name in order:
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            path.chmod(0o600 if place == "one" else 0o644)
            os.utime(path, (date, date))
        pack((tmp_path / place / name for name in order), tmp_path / place, tmp_path / f"{place}.tar.xz")
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.xz") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == [SUMS, *sorted(names)]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}


def test_what_was_kept_is_kept_again_byte_for_byte(kept: Path, tmp_path: Path) -> None:
    assert main(["keep", str(kept), str(tmp_path / "again")]) == 0
    assert files(tmp_path / "again") == files(kept)


def _rewritten(archive: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """What somebody leaves who unpacks an archive, edits it and packs it again by hand."""
    with tarfile.open(archive) as tar:
        found = {m.name: file.read() for m in tar if (file := tar.extractfile(m)) is not None}
    change(found)
    with tarfile.open(archive, "w:xz") as tar:
        for name, content in found.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


MEMBER = "runs/tiny/1x/bf16-bf16/adamw/seed1/summary.json"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-3000]), ""),
    "damaged": (lambda path: path.write_bytes(path.read_bytes()[:3000] + b"x" * 40 + path.read_bytes()[3040:]), ""),
    "empty": (lambda path: path.write_bytes(b""), ""),
    "a pointer of Git LFS": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), ""),
    "a member missing": (lambda path: _rewritten(path, lambda found: found.pop(MEMBER)), f"{MEMBER} is missing from"),
    "a member edited": (
        lambda path: _rewritten(path, lambda found: found.update({MEMBER: b"{}"})),
        f"{MEMBER} is not the file that {SUMS} lists",
    ),
    "a member more": (
        lambda path: _rewritten(path, lambda found: found.update({"runs/new": b""})),
        f"runs/new is not the file that {SUMS} lists",
    ),
    "no checksums": (lambda path: _rewritten(path, lambda found: found.pop(SUMS)), f"{SUMS} is missing from"),
    "a member outside": (
        lambda path: _rewritten(path, lambda found: found.update({"../outside": b""})),
        "../outside is not a plain file below",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_archive_is_one_line_with_a_remedy(
    study: FakeStudy, kept: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, told = FAULTS[fault]
    damage(kept / ARCHIVE)
    capsys.readouterr()
    for command in ("aggregate", "status"):
        assert main([command, *of(study, kept.parent)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"mpadam {command}: {kept / ARCHIVE}: ")
        assert told in line
        assert line.endswith("or make it again with  mpadam keep")


def test_a_member_that_is_a_link_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / ARCHIVE, "w:xz") as tar:
        member = tarfile.TarInfo("runs/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(member)
    with pytest.raises(ValueError, match="runs/link is not a plain file"):
        unpack(tmp_path / ARCHIVE, tmp_path / "out")
