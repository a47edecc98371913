"""The points of a figure as words with a link each, for those who want the runs behind one, or cannot see it."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mpadam.analysis.cells import CellKey
from mpadam.analysis.style import optimizer_styles
from mpadam.presence import is_there

_CELL = ("model", "budget", "regime", "optimizer")


@dataclass(frozen=True)
class Point:
    """cell: anchor of the runs behind it."""

    cell: str
    name: str
    value: str


def points(numbers: Path) -> tuple[Point, ...]:
    """The cells that a figure shows, each once, from its CSV; none where it shows no cells, or has no CSV."""
    if not is_there(numbers):
        return ()
    with numbers.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {*_CELL, "val_ppl_mean", "n"} <= rows[0].keys():
        return ()
    cells = {CellKey(r["model"], int(r["budget"]), r["regime"], r["optimizer"]): r for r in rows}
    return tuple(_points(cells.items()))


def _points(cells: Iterable[tuple[CellKey, dict[str, str]]]) -> Iterable[Point]:
    found = list(cells)
    labels = optimizer_styles(key.optimizer for key, _ in found)
    for key, row in found:
        name = f"{key.model} {key.budget}x {key.regime} {labels[key.optimizer].label}"
        yield Point(key.folder, name, _value(row))


def _value(row: dict[str, str]) -> str:
    if row["val_ppl_mean"]:
        spread = f" ± {float(row['val_ppl_sd']):.2f}" if row["val_ppl_sd"] else ""
        return f"{float(row['val_ppl_mean']):.2f}{spread} (n={row['n']})"
    return "div." if int(row.get("diverged") or 0) else "no result"
