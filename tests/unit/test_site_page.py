"""The page of a study: every link leads somewhere, nothing leaves the folder, nothing lost is hidden."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from analysis_fakes import FakeStudy, fake_study, study_content
from scipy import stats
from site_pages import Page, check_links, pages_from

from mpadam.analysis.cells import Cell, CellKey
from mpadam.analysis.collect import collect
from mpadam.cli import main
from mpadam.site.gains import with_interval
from mpadam.site.write import write_site

RUN = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "adamw", "seed": 1}


def build(study: FakeStudy) -> Page:
    """The page of a study whose tables and figures have not been made: that takes a second."""
    return Page(write_site(collect(study.config, study.paths)).read_text(encoding="utf-8"))


def build_all(study: FakeStudy) -> Page:
    """Aggregate and make the page with the command line, as the workflow does."""
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results)]
    assert main(["aggregate", *arguments]) in (0, 3)
    assert main(["site", *arguments]) == 0
    return Page((study.paths.root / "index.html").read_text(encoding="utf-8"))


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return fake_study(tmp_path / "results with a space", grids=[{"name": "one", "models": ["tiny"]}])


def test_every_link_is_relative_and_leads_somewhere(study: FakeStudy) -> None:
    study.diverge(**RUN)
    study.remove(**{**RUN, "seed": 0})
    page = build_all(study)
    to_pages = sum(link.startswith("pages/") and "#seed" in link for link in page.links)
    assert to_pages == 16 + 14 + 2 + 15  # details, perplexities, lost runs, loss curves
    pages = pages_from(study.paths.root / "index.html")
    assert len(pages) == 1 + 8
    check_links(pages)


def test_a_report_of_updates_shows_no_perplexity(tmp_path: Path) -> None:
    grids = [{"name": "one", "models": ["tiny"]}]
    training = study_content()["training"] | {"probe_every": 10}
    page = build_all(fake_study(tmp_path / "results", grids=grids, report="updates", training=training))
    assert "paper" not in page.ids
    assert "no claim about perplexity has a verdict" in page.text
    table = page.text.rpartition("All runs")[2]
    assert "perplexity" not in table
    assert "details" in table


def test_the_updates_of_a_study_next_to_it_are_shown_with_a_link_to_its_page(study: FakeStudy) -> None:
    build_all(study)
    root = study.paths.root
    (root.parent / "other" / "tables").mkdir(parents=True)
    shutil.copy(root / "tables" / "table2.json", root.parent / "other" / "tables" / "updates.json")
    (root.parent / "other" / "index.html").write_text('<html lang="en"></html>')
    write_site(collect(study.config, study.paths))
    page = pages_from(root / "index.html")[(root / "index.html").resolve()]
    assert "../other/index.html" in page.links
    assert {"neighbours", "of-other"} <= set(page.ids)


def test_a_table_and_a_figure_of_one_name_have_places_of_their_own(study: FakeStudy) -> None:
    build_all(study)
    root = study.paths.root
    for suffix in ("json", "svg"):
        shutil.copy(root / f"figures/figure4.{suffix}", root / f"figures/table2.{suffix}")
    write_site(collect(study.config, study.paths))
    pages = pages_from(root / "index.html")
    check_links(pages)
    assert {"table2", "table2-figure"} < set(pages[(root / "index.html").resolve()].ids)


def test_the_points_of_a_figure_lead_to_the_runs_behind_them(study: FakeStudy) -> None:
    study.diverge(**RUN)
    text = build_all(study).text
    html = (study.paths.root / "index.html").read_text()
    points = re.findall(r'<li><a href="#(tiny/[^"]+)">[^<]+</a>: ([^<]+)</li>', html)
    assert {cell for cell, _ in points} == {
        f"tiny/{b}x/{r}/{o}" for b in (1, 2) for r in study.config.regimes for o in study.config.optimizers
    }
    assert dict(points)["tiny/1x/bf16-bf16/adamw"] == "div."
    assert re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d \(n=2\)", dict(points)["tiny/1x/bf16-bf16/m-plus-adam"])
    assert "points, with the runs behind each" in text


def test_figures_that_differ_by_regime_share_a_line_of_the_contents(study: FakeStudy) -> None:
    build_all(study)
    figures = study.paths.root / "figures"
    for regime in ("bf16-bf16", "fp8-fp8"):
        for suffix in ("json", "svg"):
            shutil.copy(figures / f"figure4.{suffix}", figures / f"survival-{regime}.{suffix}")
        words = json.loads((figures / "figure4.json").read_text()) | {"title": f"What survives: {regime}"}
        (figures / f"survival-{regime}.json").write_text(json.dumps(words))
    html = write_site(collect(study.config, study.paths)).read_text()
    assert html.count('<li><a href="#survival-bf16-bf16">What survives</a></li>') == 1
    assert '<li><a href="#survival-fp8-fp8">' not in html
    check_links(pages_from(study.paths.root / "index.html"))


def test_the_page_is_static_but_for_its_own_script(study: FakeStudy) -> None:
    page = build_all(study)
    assert set(page.tags).isdisjoint({"link", "iframe", "object", "form"})
    assert page.tags.count("script") == 1
    html = (study.paths.root / "index.html").read_text()
    assert re.search(r"https?://|url\(|@import|\bon[a-z]+=|<script |fetch|XMLHttp|import\(", html) is None
    assert all(len(alt) > 20 for alt in page.alts)
    assert page.alts


def test_pages_of_cells_are_static(study: FakeStudy) -> None:
    build(study)
    style = (study.paths.root / "pages/style.css").read_text()
    assert "&" not in style  # escaped
    for path, page in pages_from(study.paths.root / "index.html").items():
        if path.name != "index.html":
            assert set(page.tags).isdisjoint({"script", "iframe", "object", "form"})
            html = re.sub(r'src="data:image/svg[^"]+"', "", path.read_text())
            assert re.search(r"https?://|url\(|@import|\bon[a-z]+=", html) is None
            assert [len(alt) > 40 for alt in page.alts] == [True, True]


def test_numbers_are_those_of_table_2_and_lead_to_their_runs(study: FakeStudy) -> None:
    build_all(study)
    html = (study.paths.root / "index.html").read_text()
    for line in (study.paths.root / "tables" / "table2.txt").read_text().splitlines():
        for number in re.findall(r"\d+\.\d\d ± \d\.\d\d \(n=2\)", line):
            assert re.search(rf'<a href="#tiny/[12]x/[a-z0-9-]+/[a-z-]+">{re.escape(number)}</a>', html)
    assert html.count("(n=2)</a>") == 8


def test_gains_have_their_interval_and_pictures_their_size(study: FakeStudy) -> None:
    build_all(study)
    html = (study.paths.root / "index.html").read_text()
    gains = re.findall(r">([+-]\d+\.\d%)( \([+-]\d+\.\d to [+-]\d+\.\d\))?</a>", html)
    assert len(gains) == 4
    assert all(interval for _, interval in gains)
    cells = {CellKey("tiny", 1, "bf16-bf16", entry): entry for entry in ("adamw", "m-plus-adam")}
    than, better = ({0: 60.0, 1: 50.0}, {0: 57.0, 1: 49.0})
    found = {key: Cell(key, values, (), (), (), None) for key, values in zip(cells, (than, better), strict=True)}
    estimate = stats.ttest_1samp([math.log(60 / 57), math.log(50 / 49)], 0).confidence_interval(0.95)
    low, high = (-100 * math.expm1(-end) for end in estimate)
    assert with_interval(found, *cells, "+3.5%") == f"+3.5% ({low:+.1f} to {high:+.1f})"
    for name in ("summary", "figure4"):
        width, height = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', _svg(study, name)).groups()
        size = f'width="{round(float(width) * 4 / 3)}" height="{round(float(height) * 4 / 3)}"'
        assert re.search(rf'<img src="figures/{name}.svg" alt="[^"]+" {size}', html)


def _svg(study: FakeStudy, name: str) -> str:
    return (study.paths.root / f"figures/{name}.svg").read_text()[:1000]


def test_what_was_run_is_told(study: FakeStudy) -> None:
    text = build(study).text
    for told in (
        "Study fake",
        "16 completed of 16 runs",
        "docstrings of installed Python packages",
        "1,200 documents, 250,000 tokens",
        "reported on 2,048 tokens",
        "perplexity 221.4 (5.400 nats per token",
        "3 trials for every optimizer, model and regime, on seed 1000",
        "The models are a fraction of the paper's smallest",
        "every run of the study has completed",
    ):
        assert told in text


def test_T6_lost_runs_are_listed_with_the_reason(study: FakeStudy) -> None:
    study.diverge(**RUN)
    study.remove(**{**RUN, "seed": 0})
    study.edit_summary({"hash": "0" * 16}, **{**RUN, "budget": 2})
    text = build_all(study).text
    assert 'id="lost" open' in (study.paths.root / "index.html").read_text()
    assert "13 completed 1 diverged 1 missing 1 refused of 16 runs" in text
    assert "tiny 1x bf16-bf16 AdamW, seed 1 diverged step 17: the loss is nan" in text
    assert "tiny 1x bf16-bf16 AdamW, seed 0 missing not begun" in text
    assert "tiny 2x bf16-bf16 AdamW, seed 1 refused summary.json: its hash 0000000000000000 is not" in text
    assert "div. (1 of 2)" in text
    assert "nan" not in text.replace("the loss is nan", "").lower().split()


def test_i21_runs_that_have_not_begun_are_listed_folded(study: FakeStudy) -> None:
    study.remove(**RUN)
    assert "seed 1 missing not begun" in build_all(study).text
    assert 'id="lost">' in (study.paths.root / "index.html").read_text()


def test_runs_that_learned_nothing_are_named(study: FakeStudy) -> None:
    study.edit_summary({"val_loss": 5.5, "val_ppl": math.exp(5.5)}, **RUN)
    assert (
        "1 completed without learning. Their loss is not below the yardstick: tiny 1x bf16-bf16 AdamW, seed 1 ."
        in build(study).text
    )


def test_what_comes_from_files_is_escaped(study: FakeStudy) -> None:
    about = {"step": 3, "reason": "<script>alert(1)</script>", "last_finite_loss": None}
    study.edit_summary({"status": "diverged", "diverged": about}, **RUN)
    page = build(study)
    assert page.tags.count("script") == 1
    assert "<script>alert(1)</script>" in page.text
    for path in (study.paths.root / "pages").rglob("*.html"):
        assert "<script>" not in path.read_text()


def test_before_aggregation_the_page_says_what_to_do(study: FakeStudy) -> None:
    page = build(study)
    assert "No tables and figures yet" in page.text
    assert "16 completed" in page.text


def test_T6_a_study_without_results_has_a_page(study: FakeStudy) -> None:
    shutil.rmtree(study.paths.root)
    page = build_all(study)
    assert "16 missing of 16 runs" in page.text
    assert "Training text" not in page.text


def test_a_refused_selection_is_named(study: FakeStudy) -> None:
    path = study.paths.selected(collect(study.config, study.paths).tunings[0].key)
    path.write_text("trials: []")
    named = path.relative_to(study.paths.root).as_posix()
    assert (
        f"Selections of rates that were refused , with the runs that depend on them: {named}: stale"
        in build(study).text
    )


def test_the_caution_is_for_models_below_the_papers(tmp_path: Path) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 1376, "layers": 24, "heads": 8, "steps_1x": 50}
    study = fake_study(tmp_path / "results", models={"big": shape}, seeds=[0])
    assert "a fraction of the paper's smallest" not in build(study).text


def test_a_size_that_needs_the_vocabulary_is_open_until_the_data_is_there(tmp_path: Path) -> None:
    study = fake_study(
        tmp_path / "results",
        models={"tiny": {**study_content()["models"]["tiny"], "steps_1x": None, "tokens_per_parameter": 20}},
        tokenizer={"source": "folder", "path": "/none"},
    )
    assert "58,016" in build(study).text
    study.paths.manifest.unlink()
    assert "tiny ? 2 layers, width 32, 2 heads ? ?" in build(study).text


def test_the_same_study_gives_the_same_page(study: FakeStudy) -> None:
    build(study)
    first = (study.paths.root / "index.html").read_bytes()
    build(study)
    assert (study.paths.root / "index.html").read_bytes() == first


# --- the commands ----------------------------------------------------------------------------------------------------


def aggregate(study: FakeStudy) -> int:
    return main(["aggregate", "--config", str(study.config_file), "--results", str(study.paths.results)])


def test_aggregate_prints_table_2_and_writes_its_files(study: FakeStudy, capsys: pytest.CaptureFixture[str]) -> None:
    assert aggregate(study) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert (study.paths.root / "tables" / "table2.txt").read_text() in printed.out
    files = {
        p.relative_to(study.paths.root).as_posix()
        for d in ("tables", "figures")
        for p in (study.paths.root / d).iterdir()
    }
    tables = {f"tables/{n}.{s}" for n in ("table2", "hyperparameters") for s in ("csv", "md", "tex", "txt", "json")}
    assert files == tables | {"tables/runs.csv"} | {
        f"figures/{n}.{s}" for n in ("figure4", "summary") for s in ("pdf", "svg", "png", "json", "csv")
    }


def test_aggregate_refuses_aloud_and_still_shows_the_rest(study: FakeStudy, capsys: pytest.CaptureFixture[str]) -> None:
    path = study.edit_summary({"hash": "0" * 16}, **RUN)
    assert aggregate(study) == 3
    printed = capsys.readouterr()
    assert f"refused: {path}: its hash 0000000000000000 is not" in printed.err
    assert "(n=1 of 2, 1 refused)" in printed.out


def test_T6_missing_and_diverged_runs_are_results_not_errors(study: FakeStudy) -> None:
    study.diverge(**RUN)
    study.remove(**{**RUN, "seed": 0})
    assert aggregate(study) == 0


def test_runs_that_could_not_be_held_against_the_data_are_announced(
    study: FakeStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    study.paths.manifest.unlink()
    assert aggregate(study) == 0
    assert "manifest.json: does not exist, so runs were not checked against the data" in capsys.readouterr().err


def test_bad_input_is_one_line_and_exit_code_2(study: FakeStudy, capsys: pytest.CaptureFixture[str]) -> None:
    study.paths.manifest.write_text("<html>")
    assert aggregate(study) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"mpadam aggregate: {study.paths.manifest}: not a JSON object; delete it and run the workflow again"
    ]


def test_the_commands_import_nothing_heavy_until_they_run() -> None:
    code = (
        "import sys, mpadam.commands.aggregate, mpadam.commands.site;"
        "print({'pandas', 'matplotlib', 'scipy', 'jinja2', 'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_collecting_and_the_page_need_no_torch_and_no_plotting_and_drawing_needs_no_torch() -> None:
    code = (
        "import sys, mpadam.site.write, mpadam.analysis.collect, mpadam.exhibits.planned;"
        "found = {'torch', 'transformers', 'matplotlib', 'seaborn'} & set(sys.modules);"
        "import mpadam.exhibits.figure3, mpadam.exhibits.figure4;"
        "print(found | {'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
