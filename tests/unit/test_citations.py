"""Docstrings and comments cite files, equations and sections that are there (issue 21, C)."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALGORITHM = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
EQUATIONS = [int(n) for n in re.findall(r"^    \S.*? \((\d+)\) +\[[AQDRE]\]", ALGORITHM, re.MULTILINE)]
SECTIONS = {*re.findall(r"^## (.+)$", ALGORITHM, re.MULTILINE), *re.findall(r"^\*\*(.+?)\*\*", ALGORITHM, re.MULTILINE)}
SECTIONS = {name.rstrip(".") for name in SECTIONS}

FOLDERS = ("benchmarks", "containers", "docs", "envs", "profiles", "src", "studies", "tests", "workflow")
FILE = re.compile(
    rf"(?<![\w/.{{}}*<-])(?<!--out )(?<!> )"  # not what a command writes
    rf"((?:(?:{'|'.join(FOLDERS)})/[\w./-]*|[\w/-]+(?:\.[\w-]+)*)\.(?:md|py|yaml|smk|sh|def))\b(?!\.\w)"
)
CITED = re.compile(r"docs/algorithm\.md,\s+((?:\(\d+\)|\"[^\"]+\")(?:(?:,| to| and)\s+\(\d+\))*)")
NUMBERED = re.compile(r"\b(?:equations?|eqs?\.)\s+\((\d+)\)", re.IGNORECASE)


def prose(path: Path) -> str:
    """Comments and docstrings of a file; whatever has three quotes counts as one."""
    with path.open("rb") as file:
        tokens = [t for t in tokenize.tokenize(file.readline) if t.type in (tokenize.COMMENT, tokenize.STRING)]
    return "\n".join(t.string for t in tokens if t.string.startswith(("#", '"""', 'r"""')))


def files_cited(text: str) -> set[str]:
    """Paths of Markdown files, and of any file that is said to be in a folder of the repository."""
    return {name for name in FILE.findall(text) if name.endswith(".md") or name.split("/")[0] in FOLDERS}


def wrong(text: str) -> list[str]:
    """Citations in a text of what does not exist."""
    missing = [name for name in files_cited(text) if not (ROOT / name).exists()]
    for cited in CITED.findall(text):
        numbers = [int(n) for n in re.findall(r"\((\d+)\)", cited)]
        missing += [f"({n})" for n in numbers if n not in EQUATIONS]
        missing += [cited] if not numbers and cited.strip('"') not in SECTIONS else []
    return missing + [f"({n})" for n in NUMBERED.findall(text) if int(n) not in EQUATIONS]


SOURCES = [p for folder in ("src", "tests", "benchmarks") for p in sorted((ROOT / folder).rglob("*.py"))]


def test_c21_nothing_is_cited_that_does_not_exist() -> None:
    found = {str(p.relative_to(ROOT)): wrong(prose(p)) for p in SOURCES}
    assert len(found) > 400
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_c21_equations_are_numbered_without_gaps_and_each_has_its_grade() -> None:
    assert list(range(1, len(EQUATIONS) + 1)) == EQUATIONS
    assert len(EQUATIONS) == len(re.findall(r"^    \S.*? \(\d+\)(?= |$)", ALGORITHM, re.MULTILINE))


def test_c21_rules_cite_their_equations() -> None:
    cited = [
        n
        for p in sorted((ROOT / "src/mpadam/optim").rglob("*.py"))
        for c in CITED.findall(prose(p))
        for n in re.findall(r"\d+", c)
    ]
    assert {10, 15, 16, 18} <= {int(n) for n in cited}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see paper.md section 2", ["paper.md"]),
        ("docs/none.md says so", ["docs/none.md"]),
        ("as tests/unit/none.py does", ["tests/unit/none.py"]),
        ("docs/algorithm.md, (1) to (99)", ["(99)"]),
        ('docs/algorithm.md,\n    "Nothing"', ['"Nothing"']),
        ("equation (77)", ["(77)"]),
        ('docs/speed.md; docs/algorithm.md, (2), (3) and (6), and docs/algorithm.md, "Where"; run.yaml', []),
    ],
)
def test_c21_what_does_not_exist_is_found(text: str, expected: list[str]) -> None:
    assert wrong(text) == expected
