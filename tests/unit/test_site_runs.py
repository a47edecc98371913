"""The page of a cell: what the folders of its runs and trials say, whatever state they are in. And the paper's numbers
next to ours."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_fakes import MANIFEST, FakeStudy, fake_study
from site_pages import Page, check_links, pages_from

from mpadam.analysis.collect import collect
from mpadam.cli import main
from mpadam.site.facts import REPORTED, next_to_the_paper
from mpadam.site.records import first_and_last, flat, log_tail, text_of
from mpadam.site.rows import run_rows, tuning_links
from mpadam.site.write import write_site
from mpadam.study.archive import open_study
from mpadam.study.paths import StudyPaths
from mpadam.study.run_folder import RunFolder

RUN = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "m-plus-adam", "seed": 1}
HERE = "pages/tiny/1x/bf16-bf16/m-plus-adam.html"


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return fake_study(tmp_path / "results", grids=[{"name": "one", "models": ["tiny"], "regimes": ["bf16-bf16"]}])


def page_of(study: FakeStudy, where: str = HERE) -> Page:
    """The page of a cell, of a site written now."""
    index = write_site(collect(study.config, study.paths))
    return Page((index.parent / where).read_text(encoding="utf-8"))


def sections_of(html: str) -> dict[str, str]:
    """Text of each section of a page by its anchor."""
    found = re.findall(r'<section id="(\w+)"[^>]*>(.*?)</section>', html, re.DOTALL)
    return {anchor: Page(f"<section>{part}</section>").text for anchor, part in found}


def test_a_page_has_the_result_the_curve_and_where_the_rates_come_from(study: FakeStudy) -> None:
    folder = study.folder(**RUN)
    summary = json.loads((folder / "summary.json").read_text())
    page = page_of(study)
    html = (study.paths.root / HERE).read_text()
    sections = sections_of(html)
    assert list(sections) == ["seeds", "seed0", "seed1", "trials", "trial0", "trial1", "trial2"]
    for told in (
        f"validation perplexity {summary['val_ppl']:.4f}",
        f"identity {summary['hash']}",
        "Specification, of this run alone seed 1",
        "End of the log done",
        "Files in runs/tiny/1x/bf16-bf16/m-plus-adam/seed1 : summary.json (",
    ):
        assert told in sections["seed1"]
    for told in (
        f"Seed 1 completed {summary['val_ppl']:.2f}",
        "lr 0.003, chosen by tuning lr_mult 0.004, chosen by tuning, without worse neighbours on both sides",
        "optimizer.name m-plus-adam",
        "training.steps 50",
    ):
        assert told in sections["seeds"]
    assert "tiny 1x bf16-bf16 M+Adam" in page.text
    assert "Trial 0: lr 0.001, lr_mult 0.004 completed 148.71" in sections["trials"]
    assert "Trial 1: lr 0.003, lr_mult 0.004 completed 148.41 chosen" in sections["trials"]
    assert page.alts[1:] == [
        "Loss in nats per token against steps: training loss from 5.900 at step 10 to 5.500 at step 50; "
        f"validation loss {summary['val_loss']:.3f} at the end."
    ]
    assert html.count('src="data:image/svg+xml,%3Csvg%20') == 2


def test_a_trial_has_the_numbers_of_its_own_summary_and_of_no_other(study: FakeStudy) -> None:
    tuning = next(t for t in collect(study.config, study.paths).tunings if t.key.regime == "bf16-bf16")
    summary = json.loads((study.folder(**RUN) / "summary.json").read_text())
    for number, digest in ((0, tuning.trials[0]["hash"]), (1, "f" * 16)):
        folder = study.paths.trial(tuning.key, number)
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({**summary, "hash": digest, "steps": 4321}))
    page_of(study)
    page = next(p for p in study.paths.root.glob(f"pages/tiny/1x/bf16-bf16/{tuning.key.optimizer}.html"))
    sections = sections_of(page.read_text())
    assert "steps 4,321" in sections["trial0"]
    assert "lr 0.003, tried" in sections["trials"]
    assert "Result None yet." in sections["trial1"]


def test_every_number_of_a_tuning_leads_to_its_trials(study: FakeStudy) -> None:
    """Of an optimizer that takes another's rates, to those."""
    collected = collect(study.config, study.paths)
    links = tuning_links(collected, run_rows(collected))
    assert links["tiny", "bf16-bf16", "M+Adam"] == "pages/tiny/1x/bf16-bf16/m-plus-adam.html#trials"
    assert len(links) == 2


def test_pages_of_a_study_in_an_archive_are_the_same_but_for_links_to_files(study: FakeStudy, tmp_path: Path) -> None:
    page = page_of(study)
    assert main(["keep", str(study.paths.root), str(tmp_path / "kept" / "fake")]) == 0
    kept = replace(study, paths=StudyPaths("fake", tmp_path / "kept"))
    index = write_site(collect(kept.config, open_study(kept.paths)))
    archived = Page((index.parent / HERE).read_text())
    told = "The files of the runs and trials below are in runs.tar.xz ."
    assert archived.text.replace(f"{told} ", "").replace(" (", "(") == page.text.replace(" (", "(")
    assert archived.alts == page.alts
    assert "../../../../runs.tar.xz" in archived.links
    check_links(pages_from(index))


def test_given_values_and_defaults_are_told_apart(study: FakeStudy) -> None:
    for seed in (0, 1):
        study.edit_summary(
            {"hyperparameters": {"lr": 3e-3, "weight_decay": 0.1 + seed, "eps": 1e-20}},
            **{**RUN, "optimizer": "adamw", "seed": seed},
        )
    page = page_of(study, HERE.replace("m-plus-adam", "adamw"))
    sections = sections_of((study.paths.root / HERE.replace("m-plus-adam", "adamw")).read_text())
    assert "lr 0.003, chosen by tuning eps 1e-20, default" in page.text
    assert "Hyper-parameters, of this run alone weight_decay 1.1, given by the study" in sections["seed1"]


def test_environment_is_shown_flat(study: FakeStudy) -> None:
    found = {"commit": "abc", "packages": {"torch": "2.13"}, "ranks": [{"host": "a"}, {"host": "b"}], "earlier": []}
    (study.folder(**RUN) / "environment.json").write_text(json.dumps(found))
    text = page_of(study).text
    shown = "commit abc packages.torch 2.13 ranks.0.host a ranks.1.host b"
    assert f"Environment, the same in every run {shown}" in text  # the other's is empty


@pytest.mark.parametrize("torn", ["{", "[]", '{"spec": 3}'])
@pytest.mark.parametrize("name", ["summary.json", "environment.json", "metrics.jsonl", "run.yaml"])
def test_torn_files_do_not_stop_the_site(study: FakeStudy, name: str, torn: str) -> None:
    (study.folder(**RUN) / name).write_text(torn)
    page = page_of(study)
    assert "tiny 1x bf16-bf16 M+Adam" in page.text
    assert ("refused" in page.text) is (name != "environment.json")


def section_of(study: FakeStudy) -> str:
    """Text of the run's section."""
    page_of(study)
    return sections_of((study.paths.root / HERE).read_text())["seed1"]


def test_a_refused_run_shows_no_numbers(study: FakeStudy) -> None:
    study.edit_summary({"hash": "0" * 16}, **RUN)
    text = section_of(study)
    assert "refused summary.json: its hash 0000000000000000 is not" in text
    assert "Result None yet." in text


def test_a_diverged_run_says_where(study: FakeStudy) -> None:
    study.diverge(**RUN)
    text = section_of(study)
    assert "diverged step 17: the loss is nan" in text
    assert "steps 50" in text
    assert "validation perplexity" not in text


def test_a_missing_run_has_a_section_that_says_so(study: FakeStudy) -> None:
    study.remove(**RUN)
    told = "Seed 1 missing not begun Loss in nats per token against steps: no training loss yet. Result None yet."
    assert section_of(study) == told
    check_links(pages_from(study.paths.root / "index.html"))


def test_pages_of_cells_that_are_no_longer_asked_for_go(study: FakeStudy) -> None:
    write_site(collect(study.config, study.paths))
    stale = study.paths.root / "pages" / "gone.html"
    stale.write_text("")
    (study.paths.root / ".pages.tmp").mkdir()  # of a call that was killed
    write_site(collect(study.config, study.paths))
    assert not stale.exists()
    assert [path.name for path in study.paths.root.iterdir() if path.name.startswith(".")] == []


def test_the_view_of_the_paper_is_a_site_of_its_own(study: FakeStudy) -> None:
    index = write_site(collect(study.config, replace(study.paths, view="paper")))
    assert index == study.paths.root / "paper" / "index.html"
    pages = pages_from(index)
    assert len(pages) == 1 + 4
    check_links(pages)


# --- reading files ---------------------------------------------------------------------------------------------------


def test_only_the_end_of_a_long_log_is_read_in_whole_lines(tmp_path: Path) -> None:
    lines = [f"line {number} " + "x" * 900 for number in range(500)]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    shown = log_tail(RunFolder(tmp_path)).splitlines()
    assert shown == lines[-len(shown) :]
    assert 10 < len(shown) <= 40


def test_first_and_last_step_of_a_long_file(tmp_path: Path) -> None:
    records = ({"step": step, "loss": step / 7, "note": "x" * 100} for step in range(1, 2001))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert first_and_last(RunFolder(tmp_path)) == [(1, 1 / 7), (2000, 2000 / 7)]


@pytest.mark.parametrize("content", ["", "\n", '{"step": 1}\n', '{"step": 1, "loss": NaN}\n', "[1]\n", "\xff\n"])
def test_metrics_without_a_loss_give_no_points(tmp_path: Path, content: str) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content.encode("latin-1"))
    assert first_and_last(RunFolder(tmp_path)) == []


def test_values_are_written_as_one_would_type_them() -> None:
    given = (None, True, False, 1e-20, 8e-5, 0.1, 1e6, 60, 131072, "bf16")
    shown = ["none", "yes", "no", "1e-20", "8e-5", "0.1", "1e6", "60", "131,072", "bf16"]
    assert [text_of(value) for value in given] == shown
    assert list(flat({"a": [1, 2], "b": {}, "c": {"d": None}})) == [("a", "1, 2"), ("c.d", "none")]


# --- the paper's numbers ---------------------------------------------------------------------------------------------


def test_gains_of_the_paper_are_those_it_is_quoted_with() -> None:
    assert [round(100 * line.gain, 1) for line in REPORTED] == [13.3, 10.5, 16.6]
    assert {line.grade for line in REPORTED} == {"Q"}


def test_at_laptop_scale_there_are_directions_and_no_numbers(study: FakeStudy) -> None:
    lines = next_to_the_paper(collect(study.config, study.paths))
    assert all(line.adamw is line.m_plus_adam is line.gain is None for line in lines)
    assert [line.direction for line in lines] == ["lower in 2 of 2", "none of its cells", "none of its cells"]
    text = Page(write_site(collect(study.config, study.paths)).read_text()).text
    assert "350m bf16-bf16 19.156 16.607 +13.3% Q – – – lower in 2 of 2" in text
    assert "only the sign of a difference can be compared" in text
    assert "licensed under CC BY 4.0" in text


def test_a_direction_counts_cells_with_a_pair_of_runs_alone(study: FakeStudy) -> None:
    study.diverge(**RUN)
    first = next_to_the_paper(collect(study.config, study.paths))[0]
    assert first.direction == "lower in 1 of 1"
    study.diverge(**{**RUN, "budget": 2})
    assert next_to_the_paper(collect(study.config, study.paths))[0].direction == "no pair of runs yet"


@pytest.mark.parametrize(("layers", "same"), [(24, True), (2, False)])
def test_numbers_stand_next_to_the_papers_only_for_a_model_of_its_size(
    tmp_path: Path, layers: int, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MANIFEST, "vocab_size", 32000)
    shape = {"hidden_size": 1024, "intermediate_size": 2736, "layers": layers, "heads": 16, "steps_1x": 50}
    study = fake_study(tmp_path / "results", study=f"big{layers}", models={"350m": shape}, budgets=[1])
    collected = collect(study.config, study.paths)
    assert collected.count("completed") == 8
    first, *others = next_to_the_paper(collected)
    assert all(line.adamw is None for line in others)
    assert (first.adamw is not None) is same
    if same:
        assert first.m_plus_adam is not None
        assert first.m_plus_adam[1] == "350m/1x/bf16-bf16/m-plus-adam"
        assert first.direction == "none of its cells"
