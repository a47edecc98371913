"""What a table is, what a reader sees, cell by cell, and the tidy data that it was made of; and its files: CSV (tidy),
Markdown, LaTeX (booktabs), plain text for the terminal, and JSON for pages that show it.
"""

import json
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tabulate import DataRow, TableFormat

from mpadam.analysis.cells import CellKey
from mpadam.analysis.style import optimizer_styles, regime_styles
from mpadam.atomic import write_text
from mpadam.study.grid import TuningKey


@dataclass(frozen=True)
class Entry:
    """One place of a table: its text, and the cell of the study whose runs are behind it."""

    text: str
    cell: CellKey | None = None


@dataclass(frozen=True)
class Table:
    """A table to read.

    headings: how many leading columns name the row; data: the same in tidy form, for the CSV file.
    """

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    headings: int
    data: pd.DataFrame
    notes: tuple[str, ...] = ()


def entries(*texts: str, cell: CellKey | None = None) -> tuple[Entry, ...]:
    """Places of a row that the same runs are behind, or none."""
    return tuple(Entry(text, cell) for text in texts)


def in_order(keys: Iterable[TuningKey]) -> list[TuningKey]:
    """Without duplicates; models as the study has them, regimes and optimizers in the order of the style map."""
    keys = list(dict.fromkeys(keys))
    models = list(dict.fromkeys(key.model for key in keys))
    regimes = list(regime_styles(key.regime for key in keys))
    optimizers = list(optimizer_styles(key.optimizer for key in keys))
    return sorted(
        keys,
        key=lambda k: (models.index(k.model), regimes.index(k.regime), optimizers.index(k.optimizer)),
    )


# --- files ------------------------------------------------------------------------------------------------------------


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "–": "--",
        **{symbol: f"\\{symbol}" for symbol in "&%$#_{}"},
    }
)
_MARKDOWN = str.maketrans({symbol: f"\\{symbol}" for symbol in "\\|*_`<"})


def write_table(table: Table, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for suffix, render in RENDERERS.items():
        files.append(folder / f"{table.name}.{suffix}")
        write_text(files[-1], render(table))
    return files


def to_csv(table: Table) -> str:
    """The tidy data; a number that does not exist is an empty cell."""
    return table.data.to_csv(index=False, lineterminator="\n")


def to_markdown(table: Table) -> str:
    header = [text.translate(_MARKDOWN) for text in table.header]
    rows = [[entry.text.translate(_MARKDOWN) for entry in row] for row in table.rows]
    rule = f"| {' | '.join(['---'] * table.headings + ['---:'] * (len(header) - table.headings))} |"
    plain = DataRow("| ", " | ", " |")
    form = TableFormat(None, lambda *_: rule, None, None, plain, plain, 0, None)
    lines = _frame(header, rows).to_markdown(index=False, tablefmt=form, disable_numparse=True, stralign=None)
    notes = "".join(f"- {note.translate(_MARKDOWN)}\n" for note in table.notes)
    return f"## {table.title.translate(_MARKDOWN)}\n\n{lines}\n\n{table.caption.translate(_MARKDOWN)}\n\n{notes}"


def to_text(table: Table) -> str:
    """For the terminal: aligned columns, repeated names left out."""
    row = DataRow("", "  ", "")
    form = TableFormat(None, None, None, None, row, row, 0, None)
    align = ["left"] * table.headings + ["right"] * (len(table.header) - table.headings)
    frame = _frame(table.header, [list(table.header), *_without_repeats(table)])  # tabulate would widen its own header
    text = frame.to_markdown(index=False, headers=(), tablefmt=form, disable_numparse=True, colalign=align)
    header, *lines = text.splitlines()
    width = max(map(len, (header, *lines)))
    about = [textwrap.fill(text, min(max(width, 60), 120)) for text in (table.caption, *table.notes)]
    return "\n".join(
        (table.title, "", header.ljust(width), "-" * width, *(line.ljust(width) for line in lines), "", *about, "")
    )


def _frame(header: tuple[str, ...] | list[str], rows: list[list[str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(header), dtype=str)


def to_latex(table: Table) -> str:
    r"""A `table` environment with booktabs rules; the document needs `\usepackage{booktabs}`."""
    columns = "l" * table.headings + "r" * (len(table.header) - table.headings)
    body = []
    for index, row in enumerate(_without_repeats(table)):
        if index and row[0]:
            body.append(r"\addlinespace")
        body.append(_latex_row(row))
    return "\n".join(
        (
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{table.title.translate(_LATEX)}. {table.caption.translate(_LATEX)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(table.header),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        )
    )


def _latex_row(texts: tuple[str, ...] | list[str]) -> str:
    return " & ".join(text.translate(_LATEX) for text in texts) + r" \\"


def _without_repeats(table: Table) -> list[list[str]]:
    """The texts, with leading names left out where they are those of the row above."""
    rows: list[list[str]] = []
    above: list[str] = []
    for entries in table.rows:
        row = [entry.text for entry in entries]
        same = 0
        while same < table.headings - 1 and above[: same + 1] == row[: same + 1]:
            same += 1
        rows.append([""] * same + row[same:])
        above = row
    return rows


def to_json(table: Table) -> str:
    """Title, caption, header, headings, notes, and rows of `{text, cell}`, where `cell` is the folder of its runs."""
    rows = [[{"text": e.text, "cell": e.cell.folder if e.cell else None} for e in row] for row in table.rows]
    words = {name: getattr(table, name) for name in ("title", "caption", "header", "headings", "notes")}
    return json.dumps({**words, "rows": rows}, indent=1, allow_nan=False) + "\n"


RENDERERS: dict[str, Callable[[Table], str]] = {
    "csv": to_csv,
    "md": to_markdown,
    "tex": to_latex,
    "txt": to_text,
    "json": to_json,
}
