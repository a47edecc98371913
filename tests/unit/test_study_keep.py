"""What is kept of a study is enough to make its tables again, byte for byte, and nothing large."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from analysis_fakes import fake_study

from mpadam.cli import main
from mpadam.stored import checksums
from mpadam.study import archive


def test_tables_made_of_what_was_kept_are_the_study_s_own(tmp_path: Path) -> None:
    study = fake_study(tmp_path / "results", grids=[{"name": "one", "models": ["tiny"]}])
    large = [study.paths.root / "data/tokens/train/tokens.bin", next(study.paths.root.glob("runs/*/*/*/*/*")) / "x.pt"]
    marker = study.paths.root / "paper/diagnostics/capabilities/.snakemake_timestamp"  # Snakemake's, in its folders
    for path in (*large, marker):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    out = tmp_path / "example" / study.config.study
    assert main(["aggregate", "--config", str(study.config_file), "--results", str(study.paths.results)]) == 0
    assert main(["keep", str(study.paths.root), str(out)]) == 0
    made = {path.name: path.read_bytes() for path in (study.paths.root / "tables").iterdir()}
    assert {path.name: path.read_bytes() for path in (out / "tables").iterdir()} == made
    shutil.rmtree(out / "tables")
    assert main(["aggregate", "--config", str(study.config_file), "--results", str(tmp_path / "example")]) == 0
    assert {path.name: path.read_bytes() for path in (out / "tables").iterdir()} == made
    assert {path.suffix for path in (study.paths.root / "figures").iterdir()} > {".png", ".svg"}
    assert (out / "figures/figure4.svg").exists()
    assert not [path for path in out.rglob("*") if path.suffix in (".bin", ".pt") or path.name == marker.name]


def test_i20_a_run_that_has_not_ended_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that writes while the archive is made would change its files between their checksum and their copy."""
    study = fake_study(tmp_path / "results", grids=[{"name": "one", "models": ["tiny"]}])
    run = next(study.paths.root.glob("runs/*/*/*/*/*/summary.json")).parent
    (run / "summary.json").unlink()
    trial = next(study.paths.root.glob("tuning/*/*/*/selected.yaml")).parent / "trial3"
    shutil.copytree(run, trial)

    def sums(named: Iterable[tuple[str, Path]]) -> str:
        made = checksums(named)
        for folder in (run, trial):
            with (folder / "metrics.jsonl").open("a") as metrics:
                metrics.write("{}\n")
        return made

    monkeypatch.setattr(archive, "checksums", sums)
    assert main(["keep", str(study.paths.root), str(tmp_path / "kept")]) == 0
    archive.unpack(tmp_path / "kept" / archive.ARCHIVE, tmp_path / "unpacked")
    ended = {path.relative_to(study.paths.root) for path in study.paths.root.rglob("summary.json")}
    assert {path.relative_to(tmp_path / "unpacked") for path in tmp_path.glob("unpacked/**/summary.json")} == ended
    assert not any((tmp_path / "unpacked" / path.relative_to(study.paths.root)).exists() for path in (run, trial))


def test_nothing_is_overwritten_and_only_a_study_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = fake_study(tmp_path / "results", grids=[{"name": "one", "models": ["tiny"]}])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert main(["keep", str(study.paths.root), str(tmp_path / "out")]) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert main(["keep", str(tmp_path / "out"), str(tmp_path / "new")]) == 2
    assert "no folder of a study" in capsys.readouterr().err
    assert main(["keep", str(study.paths.root), str(study.paths.root / "kept")]) == 2
    assert "lies inside" in capsys.readouterr().err
    for summary in study.paths.root.glob("runs/*/*/*/*/*/summary.json"):
        summary.unlink()
    assert main(["keep", str(study.paths.root), str(tmp_path / "new")]) == 2
    assert "no folder of a study with results" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
