"""The README's results are what claims.json says, whatever comes out."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from analysis_fakes import FakeStudy
from claims_samples import PLACE, gained_study, give, verdicts

from mpadam.analysis.collect import collect
from mpadam.claims.examine import claims_content
from mpadam.claims.outcome import costs, how, outcomes
from mpadam.claims.sentences import BEGIN, END, TOLD, between_markers, read_sentences, sentences
from mpadam.claims.verdicts import NOT_BRACKETED, SUPPORTED, VERDICTS
from mpadam.study.archive import open_study
from mpadam.study.load import ConfigError
from mpadam.study.paths import StudyPaths

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "results/example/long"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_says_what_claims_json_says() -> None:
    """Made again by: python -m mpadam.claims.sentences results/example/long/paper --into README.md"""
    assert between_markers(README, read_sentences(EXAMPLE / "paper")) == README


def test_the_readme_counts_the_examples_runs_and_trials() -> None:
    records = open_study(StudyPaths(EXAMPLE.name, EXAMPLE.parent)).records
    runs, trials = (len([*(records / part).rglob("summary.json")]) for part in ("runs", "tuning"))
    assert f"{runs} runs and {trials} trials" in " ".join(README.split())


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return json.loads((EXAMPLE / "paper/claims.json").read_text())


def test_every_told_claim_has_its_verdict_and_the_counts_are_of_all(example: dict[str, Any]) -> None:
    text = sentences(example)
    told = [claim for claim in example["claims"] if claim["id"] in TOLD]
    assert len(told) == len(TOLD)
    for claim in told:
        (line,) = [line for line in text.splitlines() if line.startswith(_row(claim))]
        kinds = [outcome.kind for outcome in outcomes(claim, costs(example))]
        assert f"| **{how(claim, kinds)}** |" in line
    opening = " ".join(text.partition("|")[0].split())
    counted = re.findall(rf"(\d+) (?:{'|'.join(VERDICTS)})", opening)
    assert sum(map(int, counted)) == len(example["claims"])


def _row(claim: dict[str, Any]) -> str:
    return "| " + claim["title"].replace("|", r"\|") + " |"


def test_one_cell_without_a_verdict_is_told_in_the_singular(example: dict[str, Any]) -> None:
    changed = copy.deepcopy(example)
    cells = [cell for claim in changed["claims"] for cell in claim["cells"]]
    for cell in cells:
        cell["verdict"] = SUPPORTED
    cells[0].update(verdict=NOT_BRACKETED, edges=["adamw: lr"])
    assert "1 cell of 1 claim has no verdict because a best rate" in " ".join(sentences(changed).split())


@pytest.mark.parametrize("verdict", VERDICTS)
def test_whatever_the_verdicts_become_there_are_sentences(example: dict[str, Any], verdict: str) -> None:
    changed = copy.deepcopy(example)
    for claim in changed["claims"]:
        claim["verdict"] = verdict
        for cell in claim["cells"]:
            cell["verdict"] = verdict
    text = sentences(changed)
    assert f"{len(example['claims'])} {verdict}" in " ".join(text.split())
    assert ("| **" in text) == (verdict != "not run")


def test_numbers_are_percent_of_perplexity_with_the_interval_of_the_whole_claim(tmp_path: Path) -> None:
    text = sentences(_content(gained_study(tmp_path / "results")))
    cells = "M+Adam over AdamW. Holds: +4.9% (intervals from"
    assert f"| M+Adam beats AdamW | **holds in all 4 cells** | {cells}" in text  # 1 - exp(-0.05)
    assert "cost AdamW something, against fp32 weights at the same compute" in " ".join(text.split())
    assert "nowhere" in text


def test_a_study_without_a_run_and_one_with_diverged_runs_have_sentences_too(tmp_path: Path) -> None:
    study = gained_study(tmp_path / "results")
    give(study, {0: 9.0}, **PLACE, optimizer="adamw")
    study.diverge(**PLACE, optimizer="m-plus-adam", seed=1)
    assert "| M+Adam beats AdamW | **undecided in 1 of 4 cells; holds in 3** |" in sentences(_content(study))
    for folder in ("runs", "tuning"):
        (study.paths.root / folder).rename(study.paths.root / f"no-{folder}")
    assert "29 not run" in " ".join(sentences(_content(study)).split())


def _content(study: FakeStudy) -> dict[str, Any]:
    content = claims_content(verdicts(study), collect(study.config, study.paths))
    return json.loads(json.dumps(content))


def test_a_file_without_both_markers_is_refused() -> None:
    assert between_markers(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\n\nnew\n\n{END}\nb"
    with pytest.raises(ConfigError, match="once each"):
        between_markers(f"a {BEGIN}", "new")
