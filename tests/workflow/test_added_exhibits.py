"""One file adds a table, a figure or a claim: Snakemake plans it, the page shows it, and completeness is checked."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import mpadam.exhibits
from mpadam.cli import main
from mpadam.exhibits.complete import problems
from mpadam.exhibits.registry import exhibits
from tests.workflow.toy import ROOT, make_toy

sys.path.insert(0, str(ROOT / "tests/unit"))
from analysis_fakes import FakeStudy, fake_study

TABLE = '''"""How many runs there are of each model."""

from mpadam.exhibits.kit.table import Table, entries

NAME = "added-table"
TITLE = "Runs of each model"
NEEDS = "runs"
PLACE = 11
IN_ALL = True
CHECKED = {"tables/added-table.csv": ("runs",)}


def make(source) -> Table:
    counts = source.collected.runs.groupby("model").size().rename("runs").reset_index()
    rows = tuple(entries(model, str(runs)) for model, runs in counts.itertuples(index=False))
    return Table(NAME, TITLE, "Counted.", ("model", "runs"), rows, 1, counts)
'''
FIGURE = '''"""The same as a picture."""

from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture

NAME = "added-figure"
TITLE = "Runs of each model, drawn"
NEEDS = "runs"
PLACE = 12
IN_ALL = True


def make(source) -> Picture:
    figure, (axes,) = kit.panels(1, columns=1, height=2)
    axes.plot([0, 1], [0, len(source.collected.runs)])
    return Picture(NAME, TITLE, figure, "A caption.", "A line.")
'''
CLAIM = """
  - id: added
    title: Additive AdamW is no worse than itself
    statement: A claim that a test adds.
    source: ours
    grade: R
    metric:
      kind: perplexity
      contrasts:
        - name: AdamW over M+Adam
          terms: [{optimizer: m-plus-adam, weight: 1}, {optimizer: adamw, weight: -1}]
    direction: above
    threshold: 0.005
    holds: every
    family: claim
    falsified_by: anything
"""


def write(exhibits_folder: Path) -> None:
    (exhibits_folder / "added_table.py").write_text(TABLE)
    (exhibits_folder / "added_figure.py").write_text(FIGURE)


def test_snakemake_plans_what_one_file_adds(tmp_path: Path) -> None:
    toy = make_toy(tmp_path / "toy")
    before = toy.planned()
    write(toy.folder / "src/mpadam/exhibits")
    (toy.folder / "src/mpadam/claims/claimed/99-added.yaml").write_text(CLAIM)
    after = toy.planned()
    assert after == {**before, "table": before["table"] + 1, "figure": before["figure"] + 1}
    assert toy.planned("results/toy/tables/added-table.tex")["table"] == 1


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStudy:
    """A made-up study, and a package with one more table and one more figure."""
    folder = tmp_path / "added"
    folder.mkdir()
    write(folder)
    monkeypatch.setattr(mpadam.exhibits, "__path__", [*mpadam.exhibits.__path__, str(folder)])
    return fake_study(tmp_path / "results")


def test_the_page_and_the_check_of_completeness_know_what_one_file_adds(study: FakeStudy, tmp_path: Path) -> None:
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results)]
    claimed = shutil.copytree(ROOT / "src/mpadam/claims/claimed", tmp_path / "claimed")
    (claimed / "99-added.yaml").write_text(CLAIM)
    assert main(["aggregate", *arguments]) == 0
    assert main(["claims", *arguments, "--claims", str(claimed)]) == 0
    assert main(["site", *arguments]) == 0
    page = (study.paths.root / "index.html").read_text()
    places = [
        page.index(f'id="{name}"') for name in ("table2", "added-table", "added-figure", "figure4", "claim-added")
    ]
    assert places[:4] == sorted(places[:4]), "in the order of PLACE"
    assert "added" in (study.paths.root / "tables/claims.txt").read_text()

    wanted = exhibits(study.config, "")
    assert problems(study.paths.root, wanted) == []
    (study.paths.root / "figures/added-figure.svg").unlink()
    (study.paths.root / "tables/added-table.csv").write_text("model,runs\n")
    assert problems(study.paths.root, wanted) == [
        "added-table: added-table.csv: runs: no finite number",
        "added-figure: figures/added-figure.svg: no such file",
    ]
