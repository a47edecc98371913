"""Every table and figure of the paper is an exhibit: Snakemake plans its files, and completeness is checked.

They are held against a folder of results: the smoke study's, where `all_paper` is finished, and otherwise one that is
made here, of made-up runs and quick measurements; diagnostics have tests of their own.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mpadam.cli import main
from mpadam.exhibits.complete import problems
from mpadam.exhibits.registry import Exhibit, exhibits
from mpadam.study.load import load_study
from tests.workflow.toy import ROOT, make_toy

sys.path.insert(0, str(ROOT / "tests/unit"))
from analysis_fakes import study_content
from analysis_paper_fakes import paper_study

#: by hand: what the paper shows, and the tables and figures here that show it
PAPER = {
    "Table 1": ["tables/table1", "tables/table1-write-backs"],
    "Table 2": ["tables/table2"],
    "SR and Kahan": ["tables/write-backs"],
    **{f"Figure {n}": [f"figures/figure{n}"] for n in (1, 2, 5, 6, 7, 8, 9)},
    "Figure 3": ["figures/figure3", "tables/matrix-fitting"],
    "Figure 4": ["figures/figure4", "figures/figure4-all"],
    "Appendix: ablations": ["tables/ablations", "figures/ablations"],
    "Appendix: chosen hyper-parameters": ["tables/hyperparameters"],
    "Appendix: memory": ["tables/memory"],
    "Appendix: runtime overhead": ["tables/runtime-overhead"],
}
FINISHED = ROOT / "results/smoke/paper"
CONFIG = load_study([ROOT / "config.yaml"])


def stem(exhibit: Exhibit) -> str:
    return f"{exhibit.folder}/{exhibit.name}"


def test_every_item_of_the_paper_is_an_exhibit_that_is_checked() -> None:
    found = {stem(exhibit): exhibit for exhibit in exhibits(CONFIG)}
    for item, stems in PAPER.items():
        assert set(stems) <= set(found), item
        drawn = any(one.startswith("figures/") for one in stems)
        assert drawn or any(found[one].checked for one in stems), item


def test_every_file_of_every_exhibit_has_a_rule_and_all_paper_asks_for_it(tmp_path: Path) -> None:
    """Each file is a target of its own, so one that no rule makes ends the planning."""
    toy = make_toy(tmp_path / "toy")
    wanted = exhibits(load_study([ROOT / "config.yaml", toy.folder / "toy.yaml"]))
    targets = [f"results/toy/paper/{path}" for exhibit in wanted for path in exhibit.files]
    planned, all_paper = toy.planned(*targets), toy.planned("all_paper")
    kinds = [(exhibit.folder, exhibit.needs) for exhibit in wanted if exhibit.needs != "probes"]
    for found in (planned, all_paper):
        assert found["table"] == sum(folder == "tables" for folder, _ in kinds)
        assert found["figure"] == sum(folder == "figures" for folder, _ in kinds)
        assert found["diagnose"] == 4


@pytest.mark.skipif(not (FINISHED / "index.html").exists(), reason="all_paper of the smoke study is not finished here")
def test_the_finished_smoke_study_has_every_exhibit_with_numbers() -> None:
    assert problems(FINISHED, exhibits(load_study([FINISHED / "study.yaml"]))) == []


# --- made-up results -------------------------------------------------------------------------------------------------

MADE_HERE = ("runs", "measure/memory.json", "measure/step-time.json")
ITEMS = [exhibit for exhibit in exhibits(CONFIG) if exhibit.needs in MADE_HERE]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/<study>/paper as the rules of runs and measurements leave it."""
    models = {"tiny": study_content()["models"]["tiny"]}
    study = paper_study(tmp_path_factory.mktemp("items") / "results", models=models)
    config, results = str(study.config_file), str(study.paths.results)
    assert main(["aggregate", "--config", config, "--results", results, "--view", "paper"]) == 0
    out = str(study.paths.output)
    assert main(["measure", "memory", "--options", '{"sizes": ["60m"]}', "--out", out]) == 0
    quick = '{"optimizers": ["adamw", "m-plus-adam"], "masters": ["bf16"], "shapes": [[8, 8]], "rounds": 1}'
    assert main(["measure", "step-time", "--options", quick, "--out", out]) == 0
    return study.paths.output


def test_runs_and_measurements_give_their_exhibits(made: Path) -> None:
    assert len(ITEMS) == 12
    assert problems(made, ITEMS) == []


def test_an_exhibit_without_a_file_is_named(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "paper"))
    (copy / "figures/figure6.pdf").unlink()
    assert problems(copy, ITEMS) == ["figure6: figures/figure6.pdf: no such file"]


def test_an_exhibit_without_a_finite_number_is_named(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "paper"))
    path = copy / "tables/ablations.csv"
    header, *rows = path.read_text().splitlines()
    column = header.split(",").index("val_ppl_mean")
    emptied = [",".join("" if k == column else value for k, value in enumerate(row.split(","))) for row in rows]
    path.write_text("\n".join([header, *(e for e, r in zip(emptied, rows, strict=True) if '"' not in r)]))
    (copy / "figures/figure4.csv").write_text("\n")
    assert problems(copy, ITEMS) == [
        "figure4: figure4.csv: no numbers",
        "ablations: ablations.csv: val_ppl_mean: no finite number",
    ]


def test_blank_pictures_and_empty_records_are_named(tmp_path: Path) -> None:
    from matplotlib import image

    seen = next(exhibit for exhibit in exhibits(CONFIG) if exhibit.name == "figure7")
    (tmp_path / "figures").mkdir()
    (tmp_path / "diagnostics/dataflow").mkdir(parents=True)
    for file in seen.files:
        (tmp_path / file).touch()
    image.imsave(tmp_path / "figures/figure7.png", [[0.5, 0.5], [0.5, 0.5]])
    (tmp_path / "diagnostics/dataflow/figure7.json").write_text('{"regime": {"masters": "bf16"}, "casts": []}')
    assert problems(tmp_path, [seen]) == ["figure7: figure7.png: nothing drawn", "figure7: figure7.json: nothing seen"]
    image.imsave(tmp_path / "figures/figure7.png", [[0.5, 0.1], [0.5, 0.5]])
    (tmp_path / "diagnostics/dataflow/figure7.json").write_text('{"regime": {}, "casts": ["bf16"]}')
    assert problems(tmp_path, [seen, replace(seen, checked={})]) == []
