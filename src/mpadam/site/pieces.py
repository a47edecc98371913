"""Tables and figures that the analysis left in a study's folder, ready to be shown.

Everything in `tables/*.json` and `figures/*.json` is shown, so a new table or figure needs no line here. The chart of
the summary opens the page, and the cells of claims have a table of their own there.
"""

import csv
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mpadam.analysis.cells import CellKey
from mpadam.analysis.style import optimizer_styles
from mpadam.exhibits.registry import places
from mpadam.presence import is_there
from mpadam.site.gains import Cells, with_intervals
from mpadam.study.paths import StudyPaths

#: tables that are unfolded, and come first: what the abstract calls each, and what it is for
UNFOLDED = {
    "table2": ("Table 2", " for perplexities"),
    "table1": ("Table 1", " for what an update can do"),
    "updates": ("the table of updates", ""),
}


_CELL = ("model", "budget", "regime", "optimizer")


@dataclass(frozen=True)
class Point:
    """A point of a figure in words, for those who want the runs behind it, or cannot see it. cell: anchor of these."""

    cell: str
    name: str
    value: str


@dataclass(frozen=True)
class Piece:
    """A table (`content` has header and rows) or a figure (`content` has its alternative text and size).

    anchor: its place on the page; a figure next to a table of the same name has another.
    image: link to the picture of a figure, None for a table.
    downloads: format and link.  points: what a figure shows of runs.
    """

    name: str
    anchor: str
    title: str
    caption: str
    content: dict[str, Any]
    image: str | None
    downloads: tuple[tuple[str, str], ...]
    points: tuple[Point, ...] = ()


def read_pieces(root: Path, cells: Cells) -> list[Piece]:
    """The pieces of the study whose folder is `root`; links are relative to it. cells: of the study, for intervals."""
    order = places()
    paths = [path for folder in ("tables", "figures") for path in sorted((root / folder).glob("*.json"))]
    paths.sort(key=lambda path: (order.get((path.parent.name, path.stem), math.inf), path.stem))
    return [_piece(path, root, cells) for path in paths]


def tables_of(pieces: Sequence[Piece]) -> list[Piece]:
    """The tables, those that are unfolded first."""
    found = [piece for piece in pieces if piece.image is None and piece.name != "claims"]
    order = list(UNFOLDED)
    return sorted(found, key=lambda piece: order.index(piece.name) if piece.name in order else len(order))


def figures_of(pieces: Sequence[Piece]) -> list[Piece]:
    """The figures, without the chart of the summary."""
    return [piece for piece in pieces if piece.image is not None and piece.name != "summary"]


def neighbours(paths: StudyPaths) -> list[tuple[str, str, Piece]]:
    """Studies in the same folder of results with a table of single updates: name, link to the page, the table."""
    found = []
    for path in sorted(paths.results.glob(f"*/{paths.view}/tables/updates.json")):
        output = path.parents[1]
        if output != paths.output:
            name = path.relative_to(paths.results).parts[0]
            piece = replace(_piece(path, paths.output, {}), anchor=f"of-{name}")
            found.append((name, link(output / "index.html", paths.output), piece))
    return found


def contents(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Titles with their anchors. Pieces whose titles differ only behind a colon,
    such as a figure a regime, share an entry, which leads to the first."""
    entries: dict[str, str] = {}
    for piece in pieces:
        title, colon, _ = piece.title.partition(": ")
        shared = colon and sum(other.title.startswith(f"{title}: ") for other in pieces) > 1
        entries.setdefault(title if shared else piece.title, piece.anchor)
    return list(entries.items())


def _piece(path: Path, root: Path, cells: Cells) -> Piece:
    content = json.loads(path.read_text(encoding="utf-8"))
    formats = ("svg", "pdf", "png", "csv") if path.parent.name == "figures" else ("csv", "md", "tex")
    has_twin = path.parent.name == "figures" and is_there(root / "tables" / path.name)
    files = {suffix: path.with_suffix(f".{suffix}") for suffix in formats}
    return Piece(
        name=path.stem,
        anchor=f"{path.stem}-figure" if has_twin else path.stem,
        title=content["title"],
        caption=content["caption"],
        content=with_intervals(content, cells) if "rows" in content else content,
        image=link(files["svg"], root) if "svg" in files else None,
        downloads=tuple((suffix.upper(), link(f, root)) for suffix, f in files.items() if is_there(f)),
        points=points(files["csv"]) if "svg" in files else (),
    )


def points(numbers: Path) -> tuple[Point, ...]:
    """The cells that a figure shows, each once, from its CSV; none where it shows no cells, or has no CSV."""
    if not is_there(numbers):
        return ()
    with numbers.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {*_CELL, "val_ppl_mean", "n"} <= rows[0].keys():
        return ()
    cells = {CellKey(r["model"], int(r["budget"]), r["regime"], r["optimizer"]): r for r in rows}
    labels = optimizer_styles(key.optimizer for key in cells)
    names = {key: f"{key.model} {key.budget}x {key.regime} {labels[key.optimizer].label}" for key in cells}
    return tuple(Point(key.folder, names[key], _value(row)) for key, row in cells.items())


def _value(row: dict[str, str]) -> str:
    if row["val_ppl_mean"]:
        spread = f" ± {float(row['val_ppl_sd']):.2f}" if row["val_ppl_sd"] else ""
        return f"{float(row['val_ppl_mean']):.2f}{spread} (n={row['n']})"
    return "div." if int(row.get("diverged") or 0) else "no result"


def link(path: Path, root: Path) -> str:
    """Address of a file, relative to the page in `root`."""
    return quote(Path(os.path.relpath(path, root)).as_posix())
