"""Issue 21 A: one figure of all loss curves, and one of survival with a choice of regime, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpadam.cli import main
from mpadam.stored import sha256
from mpadam.study.grid import run_keys
from tests.site.browser import CHROMIUM, Browser, Page
from tests.unit.analysis_fakes import FakeStudy, fake_study

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]
LOST = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "adamw", "seed": 0}
PANEL = "#curves-tiny-1x-bf16-bf16"
SHOWN = "[...document.querySelectorAll('{}')].filter((part) => part.checkVisibility()).map((part) => part.id)"


def loss(step: int, seed: int) -> float:
    return 6.0 - step / 100 + seed / 10


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model at two budgets in two regimes; a run is missing; two figures of one title, as of two regimes."""
    study = fake_study(tmp_path_factory.mktemp("site") / "results", grids=[{"name": "one", "models": ["tiny"]}])
    for key in run_keys(study.config):
        train(study, key)
    study.remove(**LOST)
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results)]
    assert main(["aggregate", *arguments]) == 0
    figures = study.paths.root / "figures"
    words = json.loads((figures / "figure4.json").read_text())
    for regime in ("bf16-bf16", "fp32-bf16"):
        record = {**words, "title": f"Which updates survive: {regime}"}
        (figures / f"survival-{regime}.json").write_text(json.dumps(record))
        (figures / f"survival-{regime}.svg").write_bytes((figures / "figure4.svg").read_bytes())
    assert main(["site", *arguments]) == 0
    return study.paths.root / "index.html"


def train(study: FakeStudy, key: Any) -> None:
    """Give a run losses of its own, and two validations."""
    lines = [{"step": step, "loss": loss(step, key.seed)} for step in range(10, 51, 10)]
    metrics = study.paths.run(key) / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    validation = [{"step": 25, "loss": 5.9}, {"step": 50, "loss": 5.7}]
    study.edit_summary({"validation": validation, "metrics_sha256": sha256(metrics)}, **vars(key))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, index: Path) -> Page:
    return browser.open(index)


def choose(page: Page, title: str, member: str) -> None:
    select = f"[...document.querySelectorAll('.chooser')].find(c => c.textContent.startsWith('{title}')).lastChild"
    page.evaluate(
        f"(() => {{ const s = {select}; s.selectedIndex = [...s.options].findIndex(o => o.text === '{member}');"
        "s.dispatchEvent(new Event('change')); })()"
    )


def press(page: Page, *keys: str) -> None:
    page.evaluate(f"document.querySelector('{PANEL} svg').focus()")
    for key in keys:
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def told(page: Page) -> str:
    text: str = page.evaluate(f"document.querySelector('{PANEL} output').textContent")
    return text


def test_one_figure_of_a_family_is_shown_and_a_choice_or_its_address_shows_another(page: Page, index: Path) -> None:
    survival = SHOWN.format("[id^=survival-]")
    assert page.evaluate(survival) == ["survival-bf16-bf16"]
    choose(page, "Which updates survive", "fp32-bf16")
    assert page.evaluate(survival) == ["survival-fp32-bf16"]
    page.evaluate("new Promise(done => { addEventListener('hashchange', () => setTimeout(done)); "
                  "location.hash = 'survival-bf16-bf16'; })")  # fmt: skip
    assert page.evaluate(survival) == ["survival-bf16-bf16"]
    assert page.evaluate("document.getElementById('figure4').checkVisibility()")


def test_a_panel_for_each_model_budget_and_regime_and_one_is_shown(page: Page) -> None:
    assert page.evaluate("document.querySelectorAll('figure.curves').length") == 4
    assert page.evaluate(SHOWN.format("figure.curves")) == ["curves-tiny-1x-fp32-bf16"]
    choose(page, "Loss curves", "tiny 1x bf16-bf16")
    assert page.evaluate(SHOWN.format("figure.curves")) == ["curves-tiny-1x-bf16-bf16"]


def test_every_run_with_a_loss_has_a_curve_that_leads_to_it(page: Page) -> None:
    links = page.evaluate("[...document.querySelectorAll('.plot a')].map(a => a.getAttribute('href'))")
    assert len(links) == 15
    assert len(set(links)) == 15
    assert "pages/tiny/1x/bf16-bf16/adamw.html#seed1" in links
    assert "pages/tiny/1x/bf16-bf16/adamw.html#seed0" not in links


def test_the_pointer_and_the_arrow_keys_tell_run_and_value(page: Page) -> None:
    choose(page, "Loss curves", "tiny 1x bf16-bf16")
    press(page, "ArrowDown")
    assert told(page).startswith("AdamW, seed 1: validation loss 5.700 at update 50; validation loss ")
    press(page, "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert told(page).startswith(f"M+Adam, seed 0: training loss {loss(40, 0):.3f} at update 40")
    page.evaluate(f"document.querySelector('{PANEL}').scrollIntoView()")
    left, top, width, height = page.evaluate(
        f"(({{left, top, width, height}}) => [left, top, width, height])"
        f"(document.querySelector('{PANEL} .plot rect').getBoundingClientRect())"
    )
    low, high = page.evaluate(f"(({{low, high}}) => [+low, +high])(document.querySelector('{PANEL} .card').dataset)")
    y = top + height * (high - loss(30, 1)) / (high - low)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * 0.6, y=y)
    assert f"seed 1: training loss {loss(30, 1):.3f} at update 30" in told(page)
    assert page.evaluate(f"document.querySelectorAll('{PANEL} a.near').length") == 1


def test_toggles_hide_an_optimizer_and_the_arrow_keys_pass_over_it(page: Page) -> None:
    choose(page, "Loss curves", "tiny 1x bf16-bf16")
    page.evaluate(f"document.querySelectorAll('{PANEL} input')[0].click()")
    shown = f"[...document.querySelectorAll('{PANEL} .plot a')].filter(a => a.getClientRects().length).length"
    assert page.evaluate(shown) == 2
    press(page, "ArrowDown", "ArrowDown")
    assert told(page).startswith("M+Adam, seed 1")


def test_without_scripts_every_panel_is_there_with_its_links_and_no_control(page: Page, index: Path) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.go(index.as_uri())
    assert len(page.evaluate(SHOWN.format("figure.curves, [id^=survival-]"))) == 6
    assert page.evaluate("document.querySelectorAll('#curves :is(input, select, output)').length") == 0
    assert page.evaluate("document.querySelectorAll('.plot a[tabindex]').length") == 0


def test_paper_has_the_curves_and_no_choice(page: Page) -> None:
    page.call("Emulation.setEmulatedMedia", media="print")
    seen = "['.chooser', '#curves .plot'].map(s => document.querySelector(s).getClientRects().length > 0)"
    assert page.evaluate(seen) == [False, True]
