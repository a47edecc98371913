"""`snakemake --report` on a finished study: one file, with every table, figure and page in a category, captioned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.site.browser import CHROMIUM, Browser
from tests.workflow.toy import Toy

pytestmark = pytest.mark.slow
#: among what the report holds
PLACES = {
    "index.html": "Page",
    "table2.csv": "Tables",
    "runs.csv": "Tables",
    "hyperparameters.csv": "Tables",
    "figure4.svg": "Figures",
}


@pytest.fixture(scope="module")
def report(finished_toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    done = finished_toy.snakemake("--report", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    return path


def variable(report: Path, name: str) -> Any:
    """A JSON object that the report's script begins with."""
    text = report.read_text(encoding="utf-8")
    start = f"var {name} = {{"
    assert text.count(start) == 1
    return json.JSONDecoder().raw_decode(text, text.index(start) + len(start) - 1)[0]


def test_everything_has_a_place_labels_and_a_caption(report: Path) -> None:
    categories = variable(report, "categories")
    places = {
        Path(name).name: category
        for category, parts in categories.items()
        for names in parts.values()
        for name in names
    }
    assert places.items() >= PLACES.items()
    results = variable(report, "results").values()
    assert {entry["name"] for entry in results} == set(places)
    for entry in results:
        assert list(entry["labels"]) in (["page"], ["table"], ["figure"]), entry["name"]
        assert len(entry["caption"]) > 100, entry["name"]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
def test_it_opens_without_a_network(report: Path) -> None:
    with Browser() as browser:
        page = browser.open(report)
        assert {url.partition(":")[0] for url in page.requests} <= {"file", "data"}
        assert page.events("Runtime.exceptionThrown") == page.events("Network.loadingFailed") == []
        text = page.evaluate("document.body.innerText")
    assert "The study toy of M+Adam" in text
    assert all(category in text for category in set(PLACES.values()))
