"""The site in a real browser: opens from disk, no error, no request outside its folder, tables sort and filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from mpadam.cli import main
from tests.site.browser import CHROMIUM, Browser, Page
from tests.unit.analysis_fakes import FakeStudy, fake_study

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]
EXAMPLE = Path(__file__).parents[2] / "results/example/long/paper/index.html"
DIVERGED = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "adamw", "seed": 1}

#: one text of each shown row of a table
SHOWN = """[...document.querySelectorAll('{table} tbody tr')].filter((row) => !row.hidden)
.map((row) => row.cells[{column}].textContent.trim())"""
FILTER = """(() => {{
const control = document.querySelectorAll('{section} .filters :is(input, select)')[{index}];
control.value = '{value}'; control.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"""

SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
UNFOLDED = "document.getElementById('{0}').closest('details').open"

#: [ratio, text] of every piece of text whose contrast with what is behind it is below that of WCAG AA
FAINT = """(() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    throw new Error("no background");
  };
  const faint = [];
  let seen = 0;
  for (const e of document.body.querySelectorAll("*")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || ["SCRIPT", "OPTION"].includes(e.tagName)) continue;
    seen += 1;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faint.push([ratio.toFixed(2), e.textContent.trim().slice(0, 40)]);
  }
  if (seen < 30) throw new Error(`only ${seen} texts`);
  return faint;
})()"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> FakeStudy:
    """Sixteen runs, one of them diverged and one missing, aggregated; read only."""
    study = fake_study(tmp_path_factory.mktemp("site") / "a site", grids=[{"name": "one", "models": ["tiny"]}])
    study.diverge(**DIVERGED)
    study.remove(**{**DIVERGED, "seed": 0})
    for command in ("aggregate", "claims", "site"):
        assert main([command, "--config", str(study.config_file), "--results", str(study.paths.results)]) == 0
    return study


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def index(study: FakeStudy) -> Path:
    return study.paths.root / "index.html"


@pytest.fixture(scope="module")
def pages(index: Path) -> list[Path]:
    """The index, the page of a cell that completed, and of one with a diverged run and a missing one."""
    cells = index.parent / "pages" / "tiny" / "1x" / "bf16-bf16"
    return [index, cells / "m-plus-adam.html", cells / "adamw.html"]


#: claims, most tables and figures, and the list of runs are folded until one opens them
OPEN = "document.querySelectorAll('details').forEach((claim) => { claim.open = true; })"


def path_of(url: str) -> Path:
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc) == ("file", ""), url
    return Path(unquote(parts.path))


def shown(page: Page, column: int, table: str = "#runs") -> list[str]:
    return page.evaluate(SHOWN.format(table=table, column=column))


def choose(page: Page, index: int, value: str, section: str = "#runs") -> None:
    """Fill the control of that number in the filters of a section."""
    page.evaluate(FILTER.format(section=section, index=index, value=value))


def sort(page: Page, column: int, table: str = "#runs") -> str | None:
    """Click a heading; returns what it then tells screen readers."""
    heading = f"document.querySelector('{table} thead').rows[0].cells[{column}]"
    page.evaluate(f"{heading}.querySelector('button').click()")
    return page.evaluate(f"{heading}.getAttribute('aria-sort')")


def test_pages_open_from_disk_without_a_complaint_and_ask_for_nothing_outside(
    browser: Browser, study: FakeStudy, pages: list[Path]
) -> None:
    for path in pages:
        page = browser.open(path)
        assert page.complaints == []
        assert page.evaluate("[...document.images].every(i => i.loading === 'lazy' || i.naturalWidth > 0)")
        for url in page.requests:
            if url.startswith("data:image/svg+xml,"):
                continue
            assert path_of(url).is_relative_to(study.paths.root), url
            assert path_of(url).is_file()


def test_a_page_is_one_request_and_its_pictures_whatever_the_number_of_runs(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    assert page.requests[0] == index.as_uri()
    assert set(page.requests[1:]) <= set(page.evaluate("[...document.images].map(image => image.src)"))
    assert page.evaluate("document.images.length") == 3


def test_every_link_leads_to_something_on_disk(browser: Browser, pages: list[Path]) -> None:
    for path in pages:
        links = browser.open(path).evaluate("[...document.links].map(link => link.href)")
        assert len(links) > 2
        assert all(path_of(link).is_file() for link in links)


def test_numbers_sort_by_value_with_lost_runs_last_and_a_third_click_restores(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    before = shown(page, 6)
    assert sort(page, 6) == "ascending"
    rising = shown(page, 6)
    assert rising[-2:] == ["", ""]
    assert rising[:-2] == sorted((text for text in before if text), key=float)
    assert sort(page, 6) == "descending"
    assert shown(page, 6) == [*rising[-3::-1], "", ""]
    assert sort(page, 6) is None
    assert shown(page, 6) == before


def test_names_sort_in_the_order_of_the_study_and_whole_rows_move(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    before = sorted(zip(*(shown(page, column) for column in range(7)), strict=True))
    sort(page, 2)
    assert shown(page, 2) == ["fp32-bf16"] * 8 + ["bf16-bf16"] * 8
    assert sorted(zip(*(shown(page, column) for column in range(7)), strict=True)) == before


def test_table_2_sorts_with_div_last(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    for _ in range(2):
        sort(page, 3, "#table2")
        assert shown(page, 3, "#table2")[-1].startswith("div.")


def test_filters_narrow_together_and_say_how_many_are_left(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    output = "document.querySelector('#runs output').textContent"
    assert page.evaluate(output) == "16 of 16 rows"
    choose(page, 0, "M+ADAM bf16-bf16")
    assert shown(page, 3) == ["M+Adam"] * 4
    assert shown(page, 2) == ["bf16-bf16"] * 4
    choose(page, 1, "2x")
    assert shown(page, 1) == ["2x"] * 2
    assert page.evaluate(output) == "2 of 16 rows"
    choose(page, 0, "")
    assert page.evaluate(output) == "8 of 16 rows"
    choose(page, 0, "no such thing")
    assert shown(page, 0) == []


def test_filters_are_in_the_address_and_the_address_filters(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    choose(page, 0, "M+ADAM bf16-bf16")
    choose(page, 1, "2x")
    address = page.evaluate("location.href")
    assert address == f"{index.as_uri()}#runs?contains=M%2BADAM+bf16-bf16&budget=2x"
    choose(page, 0, "")
    choose(page, 1, "")
    assert page.evaluate("location.hash") == "#runs"
    page.go("about:blank")
    page.go(address)
    assert shown(page, 1) == ["2x"] * 2
    assert shown(page, 3) == ["M+Adam"] * 2
    assert page.evaluate("document.getElementById('runs').open")
    assert page.evaluate("document.querySelector('#runs').getBoundingClientRect().top < 900")
    page.evaluate("location.hash = '#runs?budget=no-such&no-such=x'")
    page.evaluate(SETTLED)
    assert len(shown(page, 1)) == 16


def test_a_link_into_what_is_folded_unfolds_it(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    for anchor in ("runs", "figure4", "cells-1", "tiny/1x/bf16-bf16/m-plus-adam"):
        assert not page.evaluate(f"document.getElementById('{anchor}').checkVisibility() && {UNFOLDED.format(anchor)}")
        page.evaluate(f"location.hash = '#{anchor}'")
        page.evaluate(SETTLED)
        assert page.evaluate(UNFOLDED.format(anchor))
        page.go(index.as_uri())


def test_a_number_leads_to_all_its_runs_though_they_are_sorted_and_filtered_away(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    sort(page, 6)
    choose(page, 0, "2x")
    page.evaluate("document.querySelector('#table2 a[href=\"#tiny/1x/bf16-bf16/m-plus-adam\"]').click()")
    marked = "[...document.querySelectorAll('tr.marked')].map(r => [0, 1, 2, 3].map(c => r.cells[c].textContent))"
    page.evaluate(SETTLED)
    assert page.evaluate(marked) == [["tiny", "1x", "bf16-bf16", "M+Adam"]] * 2
    assert len(shown(page, 0)) == 16
    where = page.evaluate("document.querySelector('tr.marked').getBoundingClientRect().top")
    assert 0 < where < 900


def test_a_number_leads_to_the_section_of_its_run_and_of_its_trials(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    for link, heading in (
        ('#runs a[href$="tiny/1x/bf16-bf16/m-plus-adam.html#seed1"]', "Seed 1"),
        ('#hyperparameters a[href$="tiny/1x/bf16-bf16/m-plus-adam.html#trials"]', "Tuning trials of tiny bf16-bf16"),
    ):
        page.go(index.as_uri())
        page.go(page.evaluate(f"document.querySelector('{link}').href"))
        target = "document.querySelector(':target')"
        assert page.evaluate(f"{target}.querySelector('h2').textContent").startswith(heading)
        assert page.evaluate(f"{target}.getBoundingClientRect().top") < 900


def test_a_link_from_the_page_of_a_cell_marks_its_runs(browser: Browser, pages: list[Path]) -> None:
    page = browser.open(pages[1])
    page.go(page.evaluate("document.querySelectorAll('.kicker a')[1].href"))
    assert page.evaluate("document.querySelectorAll('tr.marked').length") == 2


def test_without_scripts_everything_is_there_and_no_control_that_does_nothing(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.go(index.as_uri())
    counts = "['#runs tbody tr', 'button, input, select'].map(s => document.querySelectorAll(s).length)"
    assert page.evaluate(counts) == [16, 0]


def test_controls_have_names(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    assert page.evaluate("document.querySelectorAll('select').length") > 5
    assert page.evaluate("[...document.querySelectorAll('input, select')].every(c => c.labels.length === 1)")
    assert page.evaluate("[...document.querySelectorAll('button')].every(b => b.textContent.trim())")


def test_the_keyboard_reaches_every_link_and_fold_that_is_shown_and_each_shows_its_focus(
    browser: Browser, pages: list[Path]
) -> None:
    for path in pages:
        page = browser.open(path)
        wanted = page.evaluate(
            "[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]"
            ".filter(e => e.getAttribute('tabindex') !== '-1')"  # the arrow keys lead to the other curves
            ".filter(e => e.checkVisibility({checkVisibilityCSS: true})).length"
        )
        reached, outlines = 0, set()
        page.evaluate("seen = new Set()")
        while page.evaluate("seen.size") == reached and reached < wanted:
            for kind in ("keyDown", "keyUp"):
                page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            page.evaluate("seen.add(document.activeElement)")
            outlines.add(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
            reached += 1
        assert reached == wanted
        assert outlines == {"solid"}


def test_a_fold_opens_by_the_keyboard(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    page.evaluate("document.querySelector('#runs > summary').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.evaluate(SETTLED)
    assert page.evaluate("document.getElementById('runs').open")


def test_pictures_and_strips_have_words_and_every_picture_its_size(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    assert page.evaluate(
        "[...document.images].every(i => i.alt.length > 20 && i.width > 0 && i.getAttribute('height'))"
    )
    assert page.evaluate("document.querySelectorAll('[role=img]').length") > 5
    assert page.evaluate("[...document.querySelectorAll('[role=img], nav, [role=region]')].every(e => e.ariaLabel)")


def test_the_navigation_stays_in_sight_wide_and_narrow(browser: Browser, index: Path) -> None:
    for width in (1440, 400):
        page = browser.open(index, width=width)
        page.evaluate("document.getElementById('study').scrollIntoView()")
        page.evaluate(SETTLED)
        assert page.evaluate("window.scrollY") > 500
        assert abs(page.evaluate("document.querySelector('nav').getBoundingClientRect().top")) < 1


def test_i21_the_examples_page_has_at_most_15_screens_with_claims_and_tables_1_and_2_unfolded(browser: Browser) -> None:
    page = browser.open(EXAMPLE, width=1440, height=900)
    assert page.evaluate("[...document.querySelectorAll('main details.piece[open]')].map(d => d.id)") == [
        "table2",
        "table1",
    ]
    assert page.evaluate("document.querySelectorAll('details.claim').length") >= 27
    height = "document.documentElement.scrollHeight"
    for unfolded in ("details.claim", "details#claims"):
        page.evaluate(f"document.querySelectorAll('{unfolded}').forEach((part) => {{ part.open = true; }})")
        assert 5 * 900 < page.evaluate(height) <= 15 * 900
        page.evaluate(f"document.querySelectorAll('{unfolded}').forEach((part) => {{ part.open = false; }})")
    first = "[...document.querySelectorAll('.abstract, .losses')].every(e => e.getBoundingClientRect().bottom < 900)"
    page.evaluate("window.scrollTo(0, 0)")
    assert page.evaluate(first)


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_what_is_behind_it(browser: Browser, pages: list[Path], dark: bool) -> None:
    for path in pages:
        page = browser.open(path, dark=dark)
        page.evaluate(OPEN)
        assert page.evaluate(FAINT) == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is not dark


def test_a_phone_scrolls_tables_and_not_the_page(browser: Browser, pages: list[Path]) -> None:
    for path in pages:
        page = browser.open(path, width=360, height=740)
        page.evaluate(OPEN)
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_paper_has_the_rows_and_none_of_the_controls(browser: Browser, index: Path) -> None:
    page = browser.open(index)
    assert page.pdf().startswith(b"%PDF-")
    page.call("Emulation.setEmulatedMedia", media="print")
    seen = "['#runs tbody tr', '.filters', 'nav', '.downloads'].map(s => document.querySelector(s).checkVisibility())"
    assert page.evaluate(seen) == [True, False, False, False]
