"""A table as CSV (tidy), Markdown, LaTeX (booktabs), plain text for the terminal, and JSON for pages that show it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from mpadam.analysis.tables import Table
from mpadam.atomic import write_text

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    **{symbol: f"\\{symbol}" for symbol in "&%$#_{}"},
}


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
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
    """A heading, the table, the caption and the notes."""
    rows = [[_markdown(entry.text) for entry in row] for row in table.rows]
    header = [_markdown(text) for text in table.header]
    rule = ["---"] * table.headings + ["---:"] * (len(header) - table.headings)
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
    notes = "".join(f"- {_markdown(note)}\n" for note in table.notes)
    return f"## {_markdown(table.title)}\n\n" + "\n".join(lines) + f"\n\n{_markdown(table.caption)}\n\n{notes}"


def _markdown(text: str) -> str:
    for symbol in "\\|*_`<":
        text = text.replace(symbol, f"\\{symbol}")
    return text


def to_latex(table: Table) -> str:
    r"""A `table` environment with booktabs rules; the document needs `\usepackage{booktabs}`."""
    columns = "l" * table.headings + "r" * (len(table.header) - table.headings)
    rows = _without_repeats(table)
    body = []
    for index, row in enumerate(rows):
        if index and row[0]:
            body.append(r"\addlinespace")
        body.append(" & ".join(_latex(text) for text in row) + r" \\")
    return "\n".join(
        (
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(table.title)}. {_latex(table.caption)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(_latex(text) for text in table.header) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        )
    )


def _latex(text: str) -> str:
    return "".join(_LATEX.get(symbol, symbol) for symbol in text)


def to_text(table: Table) -> str:
    """For the terminal: aligned columns, repeated names left out."""
    rows = [list(table.header), *_without_repeats(table)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.header))]
    lines = [_aligned(row, widths, table.headings) for row in rows]
    width = max(len(lines[0]), 60)
    about = [textwrap.fill(text, min(width, 120)) for text in (table.caption, *table.notes)]
    return "\n".join((table.title, "", lines[0], "-" * len(lines[0]), *lines[1:], "", *about, ""))


def _aligned(row: Sequence[str], widths: Sequence[int], headings: int) -> str:
    parts = (t.ljust(w) if i < headings else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True)))
    return "  ".join(parts)


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
