"""docs/configuration.md: the committed page is what the models say, complete, in the order of config.yaml."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mpadam.study.config import StudyConfig
from mpadam.study.documentation import page
from mpadam.study.load import read_yaml

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = StudyConfig.model_json_schema()
MODELS = {"StudyConfig": SCHEMA, **SCHEMA["$defs"]}


def rows(heading: str) -> dict[str, list[str]]:
    """Key -> type, default and description, of the table below a heading of the page."""
    section = re.split(r"^#+ ", page(), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(heading))
    lines = re.findall(r"^\| \[?`(\w+)`\S* \| (.*) \|$", text, re.MULTILINE)
    return {key: re.split(r" (?<!\\)\| ", cells) for key, cells in lines}


def test_the_committed_page_is_the_one_the_code_generates() -> None:
    committed = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert committed == page(), "run: python -m mpadam.study.documentation > docs/configuration.md"


@pytest.mark.parametrize("model", MODELS)
def test_every_key_is_described_in_a_sentence(model: str) -> None:
    assert MODELS[model]["description"].endswith(".")
    for key, field in MODELS[model].get("properties", {}).items():
        assert re.match(r"^[A-Z`].*\.$", field.get("description", ""), re.DOTALL), f"{model}.{key}"


def test_the_page_has_every_key_once() -> None:
    keys = sum(len(model.get("properties", {})) for model in MODELS.values())
    assert len(re.findall(r"^\| \[?`", page(), re.MULTILINE)) == keys


def test_sections_are_in_the_order_of_config_yaml() -> None:
    headings = re.findall(r"^## `(\w+)", page(), re.MULTILINE)
    ordered = [key for key in read_yaml(ROOT / "config.yaml") if key in headings]
    assert [key for key in headings if key in ordered] == ordered
    assert len(ordered) > 5


def test_types_and_defaults() -> None:
    assert rows("`data`")["sequence_length"][:2] == ["integer from 2", "`256`"]
    assert rows("`regimes.<name>`")["margin"][:2] == ["integer from 0 to 8", "`0`"]
    assert rows("`tuning`")["trials_per_job"][:2] == ["`1` or `all`", "`1`"]
    assert rows("`optimizers.<name>`")["search"][:2] == ["mapping of names to lists of numbers", "`{}`"]
    assert rows("`grids`")["name"][1] == "required"


def test_a_default_that_a_factory_makes_is_shown() -> None:
    """The schema of a model leaves it out; that of the study has it in the section's own default."""
    shown = json.loads(rows("`diagnostics.dataflow`")["figures"][1].strip("`"))
    assert shown["figure8"] == {"masters": "bf16", "compute": "fp8"}


def test_links_lead_somewhere() -> None:
    anchors = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in re.findall(r"^#+ (.*)", page(), re.M)}
    links = re.findall(r"\]\(([^)]+)\)", page())
    assert {"data.md", "concepts/claims.md", "#trainingschedule-trainingschedule_mult"} <= set(links)
    for link in links:
        assert link[1:] in anchors if link.startswith("#") else (ROOT / "docs" / link).is_file(), link
