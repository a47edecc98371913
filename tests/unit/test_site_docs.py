"""The pages for newcomers: Python blocks run, commands are ones that exist, links lead somewhere, messages are real."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml
from torch import bfloat16
from torch.nn import Linear

from mpadam.cli import build_parser
from mpadam.study.config import RegimeConfig

ROOT = Path(__file__).parents[2]
NAMES = ("troubleshooting", "faq", "glossary", "verdicts", "which-optimizer", "workflow", "contributing")
PAGES = [*sorted((ROOT / "docs/concepts").glob("*.md")), *(ROOT / f"docs/{name}.md" for name in NAMES)]
PAGES += [ROOT / "README.md", ROOT / "results/README.md"]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}


def blocks(kind: str) -> list[tuple[str, str]]:
    """(page, block) of every fenced block of a kind."""
    pattern = re.compile(rf"^```{kind}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(name, block) for name, text in TEXTS.items() for block in pattern.findall(text)]


def commands(program: str) -> list[str]:
    """Indented command lines of the pages."""
    return [line for text in TEXTS.values() for line in re.findall(rf"^    ({program} .+)$", text, re.MULTILINE)]


@pytest.mark.parametrize(("name", "block"), blocks("python"))
def test_python_blocks_run(name: str, block: str) -> None:
    exec(compile(block, name, "exec"), {"__name__": "docs", "model": Linear(8, 8, dtype=bfloat16)})


def test_there_are_blocks_and_commands_to_try() -> None:
    assert len(blocks("python")) == 8
    assert len(blocks("yaml")) == 2
    assert len(commands("mpadam")) >= 7


def test_regimes_of_the_example_are_valid() -> None:
    (block,) = (block for page, block in blocks("yaml") if page.startswith("docs/concepts"))
    for regime in yaml.safe_load(block)["regimes"].values():
        RegimeConfig.model_validate(regime)


@pytest.mark.parametrize("command", commands("mpadam"))
def test_commands_are_understood(command: str) -> None:
    parser: argparse.ArgumentParser = build_parser()
    parser.parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_files(name: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", TEXTS[name]):
        assert ((ROOT / name).parent / link).is_file(), link


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    messages = re.findall(r"^\| `([^`]+)`", TEXTS["docs/troubleshooting.md"], re.MULTILINE)
    assert len(messages) == 17
    code = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/mpadam").rglob("*.py"))
    joined = re.sub(r'"\s*f?"', "", code)
    for message in messages:
        assert message in joined, message


def test_regimes_named_are_those_of_the_study() -> None:
    config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    named = set(re.findall(r"`([a-z0-9]+-(?:bf16|fp8))`", TEXTS["docs/concepts/regimes.md"]))
    assert named == set(config["regimes"])
