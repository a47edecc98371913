"""Every table and figure of the paper has a rule, files, and numbers.

The list is data (src/mpadam/analysis/items.yaml). It is held against the workflow by planning it, and against a folder
of results: the smoke study's, where `all_paper` is finished, and otherwise one that is made here, of made-up runs and
quick measurements; diagnostics have tests of their own.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mpadam.analysis.items import Item, paper_items, problems

from mpadam.cli import main
from tests.workflow.toy import ROOT, make_toy

sys.path.insert(0, str(ROOT / "tests/unit"))
from analysis_fakes import study_content
from analysis_paper_fakes import paper_study

#: paper.md section 6, by hand
PAPER = {
    *(f"Figure {number}" for number in range(1, 10)),
    *("Table 1", "Table 2", "SR and Kahan"),
    *(f"Appendix: {name}" for name in ("ablations", "chosen hyper-parameters", "memory", "runtime overhead")),
}
FINISHED = ROOT / "results/smoke/paper"


def finished() -> bool:
    """Whether `all_paper` of the smoke study is there as a whole: the page is made last."""
    page = FINISHED / "index.html"
    return page.exists() and all((FINISHED / path).exists() for item in paper_items() for path in item.paths)


def test_the_list_is_the_paper_s() -> None:
    names = [item.item for item in paper_items()]
    assert set(names) == PAPER
    assert len(names) == len(PAPER)
    assert all(item.files and item.check for item in paper_items())


def test_every_item_has_a_rule_that_makes_its_files(tmp_path: Path) -> None:
    """Each file is a target of its own, so one that no rule makes ends the planning; so does a rule of another name."""
    toy = make_toy(tmp_path / "toy")
    for item in paper_items():
        for path in item.paths:
            assert path.count("/") == 1
    targets = [f"results/toy/paper/{path}" for item in paper_items() for path in item.paths]
    planned = toy.planned(*targets)
    assert {item.rule for item in paper_items()} <= set(planned)
    for item in paper_items():
        assert _produces(toy.folder, item), f"{item.item}: {item.rule} does not make {item.files}"


def _produces(folder: Path, item: Item) -> bool:
    """Whether the text of the rule names the files; figures 7 to 9 are names in the options of their rule."""
    text = "\n".join(path.read_text() for path in sorted((folder / "workflow/rules").glob("*.smk")))
    rule = re.search(rf"^rule {item.rule}:\n(.*?)(?=^rule |\Z)", text, re.MULTILINE | re.DOTALL)
    assert rule, f"no rule {item.rule}"
    names = [stem.partition("/")[2] for stem in item.files]
    return all(name in rule[1] or "dataflow.figures" in rule[1] for name in names)


def test_all_paper_asks_for_every_item(tmp_path: Path) -> None:
    planned = make_toy(tmp_path / "toy").planned("all_paper")
    assert {item.rule for item in paper_items()} <= set(planned)


@pytest.mark.skipif(not finished(), reason="all_paper of the smoke study is not finished here")
def test_the_finished_smoke_study_has_every_item_with_numbers() -> None:
    assert problems(FINISHED) == []


# --- made-up results -------------------------------------------------------------------------------------------------

MADE_HERE = ("aggregate_paper", "measure_memory", "measure_step_time")
ITEMS = [item for item in paper_items() if item.rule in MADE_HERE]


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


def test_runs_and_measurements_give_their_items(made: Path) -> None:
    assert len(ITEMS) == 8
    assert problems(made, ITEMS) == []


def test_an_item_without_a_file_is_named(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "paper"))
    (copy / "figures/figure6.pdf").unlink()
    assert problems(copy, ITEMS) == ["Figure 6: figures/figure6.pdf: no such file"]


def test_an_item_without_a_finite_number_is_named(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "paper"))
    path = copy / "tables/ablations.csv"
    header, *rows = path.read_text().splitlines()
    column = header.split(",").index("val_ppl_mean")
    emptied = [",".join("" if k == column else value for k, value in enumerate(row.split(","))) for row in rows]
    path.write_text("\n".join([header, *(e for e, r in zip(emptied, rows, strict=True) if '"' not in r)]))
    (copy / "figures/figure4.csv").write_text("\n")
    assert problems(copy, ITEMS) == [
        "Figure 4: figure4.csv: no numbers",
        "Appendix: ablations: ablations.csv: val_ppl_mean: no finite number",
    ]


def test_blank_pictures_and_empty_records_are_named(tmp_path: Path) -> None:
    from matplotlib import image

    seen = next(item for item in paper_items() if item.item == "Figure 7")
    item = replace(seen, files=())
    (tmp_path / "figures").mkdir()
    (tmp_path / "diagnostics/dataflow").mkdir(parents=True)
    image.imsave(tmp_path / "figures/figure7.png", [[0.5, 0.5], [0.5, 0.5]])
    (tmp_path / "diagnostics/dataflow/figure7.json").write_text('{"regime": {"masters": "bf16"}, "casts": []}')
    expected = ["Figure 7: figure7.png: nothing drawn", "Figure 7: figure7.json: nothing seen"]
    assert problems(tmp_path, [item]) == expected
    image.imsave(tmp_path / "figures/figure7.png", [[0.5, 0.1], [0.5, 0.5]])
    (tmp_path / "diagnostics/dataflow/figure7.json").write_text('{"regime": {}, "casts": ["bf16"]}')
    assert problems(tmp_path, [item]) == []
