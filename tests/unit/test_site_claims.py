"""The claims on the page: near its top, each with its verdict, its cells and links to their runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from analysis_fakes import FakeStudy
from claims_samples import claims_study
from site_pages import Page, check_links, pages_from

from mpadam.analysis.collect import collect
from mpadam.claims.data import load_claims
from mpadam.claims.outcome import KINDS
from mpadam.cli import main
from mpadam.site.claims import KEY, read_claims
from mpadam.study.load import ConfigError

PLACE = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "m-plus-adam"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> FakeStudy:
    """One diverged and one missing run, judged and made into a page; read only."""
    study = claims_study(tmp_path_factory.mktemp("claims") / "results")
    study.diverge(**PLACE, seed=1)
    study.remove(**{**PLACE, "regime": "fp8-bf16", "seed": 0})
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results)]
    assert main(["claims", *arguments]) == main(["site", *arguments]) == 0
    return study


@pytest.fixture(scope="module")
def html(study: FakeStudy) -> str:
    return (study.paths.root / "index.html").read_text(encoding="utf-8")


def test_every_claim_has_its_outcome_in_words_its_sentence_and_a_square_per_cell(study: FakeStudy, html: str) -> None:
    text = Page(html).text
    shown = read_claims(study.paths.root, collect(study.config, study.paths).digest)
    assert shown is not None
    assert list(shown["groups"]) == ["The paper's claims", "A referee's objections", "Our own questions"]
    claims = [claim for group in shown["groups"].values() for claim in group]
    assert {one["id"] for one in claims} == {claim.id for claim in load_claims().claims}
    for one in claims:
        assert f"{one['how']} {one['statement']}" in text
        assert f"It would be falsified by {one['falsified_by']}" in text
        part = html[html.index('<details class="claim" id="claim-{id}">'.format_map(one)) :].partition("</summary>")[0]
        assert part.count('<span class="square ') == len(one["rows"]) == len(one["cells"])
        assert not {"supported", "contradicted", "inconclusive"} & set(re.findall(r"\w+", part))


def test_every_kind_of_cell_has_a_sign_of_its_own_that_the_page_explains(html: str) -> None:
    assert set(KEY) == set(KINDS)
    assert len({sign for sign, _ in KEY.values()}) == len(KEY)
    key = re.findall(r"</span> <strong>([a-z ]+)</strong>", html)
    assert set(key) == {found.replace("-", " ") for found in re.findall(r'<span class="square ([a-z-]+)" title', html)}


def test_verdicts_on_other_runs_than_are_there_are_called_out_of_date(tmp_path: Path, html: str) -> None:
    assert "Out of date." not in html
    study = claims_study(tmp_path / "results")
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results)]
    assert main(["claims", *arguments]) == 0
    study.remove(**PLACE, seed=0)
    assert main(["site", *arguments]) == 0
    assert "Out of date." in (study.paths.root / "index.html").read_text()


def test_the_answer_opens_the_page_and_the_claims_follow(html: str) -> None:
    page = Page(html)
    assert page.links[0] == "#abstract"
    places = [html.index(part) for part in ('id="abstract"', 'id="verdicts"', 'id="claims"', 'id="study"')]
    assert places == sorted(places)


def test_the_table_of_cells_has_eight_columns_the_outcome_first(html: str) -> None:
    table = html[html.index('id="claims"') :]
    heads = re.findall(r"<th scope=[^>]+>([^<]+)</th>", table[: table.index("</thead>")])
    assert heads[0] == "outcome"
    assert len(heads) == 8


def test_cells_lead_to_their_runs_and_every_link_leads_somewhere(study: FakeStudy, html: str) -> None:
    assert '<a href="#tiny/1x/nvfp4-bf16/m-plus-adam">tiny 1x nvfp4-bf16</a>' in html
    check_links(pages_from(study.paths.root / "index.html"))
    assert {"claims.json", "#cells-1"} <= set(Page(html).links)


def test_b6_the_page_tells_the_exact_p_and_what_so_few_seeds_allow(html: str) -> None:
    text = Page(html).text
    assert re.search(r"[0-9.]+ \(n = 5\)", text)
    assert "can be below 0.05 only with six seeds or more" in text


def test_effects_are_in_percent_with_intervals_and_no_number_is_a_logarithm(html: str) -> None:
    text = Page(html).text
    assert re.search(r"[+-]\d+\.\d% \([+-]\d+\.\d to [+-]\d+\.\d\)", text)
    assert re.search(r"[+-]0\.\d{4}\b", text) is None


def test_T6_diverged_and_missing_runs_are_told_in_their_cells(html: str) -> None:
    text = Page(html).text
    assert re.search(r"tiny 1x bf16-bf16 div\. [^A-Z]*a run diverged; m-plus-adam diverged at seed 1", text)
    assert "4 of 5 seeds are in; no verdict before all are" in text


def test_the_page_says_what_verdicts_are_about_and_what_they_were_judged_by(html: str) -> None:
    text = Page(html).text
    assert "Verdicts are about these models: all of them are a fraction of the paper's smallest" in text
    assert load_claims().sha256 in text
    assert "one variance" not in text


def test_a_page_without_verdicts_has_no_such_section(tmp_path: Path) -> None:
    study = claims_study(tmp_path / "results", seeds=[0])
    assert main(["site", "--config", str(study.config_file), "--results", str(study.paths.results)]) == 0
    html = (study.paths.root / "index.html").read_text(encoding="utf-8")
    assert "verdicts" not in Page(html).ids


@pytest.mark.parametrize("content", ["[]", "{}", '{"claims": [{"verdict": "supported"}], "runs_digest": ""}'])
def test_a_file_that_is_none_of_mpadam_claims_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "claims.json").write_text(content)
    if content == "[]":  # no object, as a torn disk leaves it
        assert read_claims(tmp_path, "") is None
        return
    with pytest.raises(ConfigError, match=r"claims\.json: not what mpadam claims writes; delete it"):
        read_claims(tmp_path, "")
