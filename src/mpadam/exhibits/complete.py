"""The paper's list of tables and figures as data, and whether a folder of results has them.

    for problem in problems(Path("results/smoke/paper")): ...

python -m mpadam.analysis.items results/smoke/paper
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import image

from mpadam.presence import is_there, why_unreadable
from mpadam.study.load import read_yaml

ITEMS = Path(__file__).with_name("items.yaml")
SUFFIXES = {"tables": (".csv", ".md", ".tex", ".txt", ".json"), "figures": (".pdf", ".svg", ".png", ".json")}


@dataclass(frozen=True)
class Item:
    """One table, figure or appendix of the paper; fields as in items.yaml."""

    item: str
    about: str
    rule: str
    files: tuple[str, ...]
    check: dict[str, Any]
    note: str = ""

    @property
    def paths(self) -> list[str]:
        """All its files, relative to the folder of results."""
        return [stem + suffix for stem in self.files for suffix in SUFFIXES[stem.partition("/")[0]]]


def paper_items() -> list[Item]:
    """In the paper's order."""
    return [Item(**{**content, "files": tuple(content["files"])}) for content in read_yaml(ITEMS)["items"]]


def problems(root: Path, items: list[Item] | None = None) -> list[str]:
    """One line for each item that is not there, or without a finite number, in the folder `root`; all items if None."""
    return [f"{item.item}: {problem}" for item in items or paper_items() for problem in _problems_of(root, item)]


def _problems_of(root: Path, item: Item) -> list[str]:
    try:
        return list(_problems(root, item))
    except OSError as error:
        return [why_unreadable(error)]


def _problems(root: Path, item: Item) -> Iterator[str]:
    yield from (f"{path}: no such file" for path in item.paths if not is_there(root / path))
    if "file" in item.check:
        yield from _numbers(root / item.check["file"], item.check["columns"])
    if "drawn" in item.check:
        yield from _picture(root / item.check["drawn"])
    if "seen" in item.check:
        yield from _seen(root / item.check["seen"])


def _numbers(path: Path, columns: list[str]) -> Iterator[str]:
    """Columns of a CSV file without a finite number."""
    if not is_there(path) or not path.read_text(encoding="utf-8").strip():
        yield f"{path.name}: no numbers"
        return
    frame = pd.read_csv(path)
    for column in columns:
        values = pd.to_numeric(frame[column], errors="coerce") if column in frame else pd.Series(dtype=float)
        if not np.isfinite(values.to_numpy(dtype=float)).any():
            yield f"{path.name}: {column}: no finite number"


def _picture(path: Path) -> Iterator[str]:
    """A picture that is missing, or of one colour."""
    if not is_there(path) or not np.ptp(image.imread(path)[..., :3], axis=(0, 1)).any():
        yield f"{path.name}: nothing drawn"


def _seen(path: Path) -> Iterator[str]:
    """A record without entries."""
    content = json.loads(path.read_text(encoding="utf-8")) if is_there(path) else {}
    if not any(isinstance(value, list | dict) and value for key, value in content.items() if key != "regime"):
        yield f"{path.name}: nothing seen"


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]))
    print("\n".join(found) or f"{sys.argv[1]}: every item of the paper is there")
    sys.exit(1 if found else 0)
