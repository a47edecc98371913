"""Intervals of the gains that tables show: over the same pairs of seeds, Student's, of the cell alone."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mpadam.analysis.cells import BASELINE, Cell, CellKey, cell_of
from mpadam.analysis.entries import METHOD, base_of, is_level
from mpadam.analysis.statistics import mean_gain
from mpadam.analysis.style import OPTIMIZERS, optimizer_styles

_GAIN = re.compile(r"([+-]\d+\.\d%)(?: \((n=\d+)\))?")
_OVER = f"{OPTIMIZERS[METHOD].label} over "
Cells = Mapping[CellKey, Cell]


def with_intervals(content: dict[str, Any], cells: Cells) -> dict[str, Any]:
    """The record of a table, with `+2.4% (-1.2 to +6.1)` in place of `+2.4%` in its columns of gains."""
    header = content["header"]
    rows = [[_entry(title, entry, cells) for title, entry in zip(header, row, strict=True)] for row in content["rows"]]
    return content | {"rows": rows}


def _entry(title: str, entry: dict[str, Any], cells: Cells) -> dict[str, Any]:
    found, key = _GAIN.fullmatch(entry["text"]), cell_of(entry["cell"] or "")
    if found is None or key is None or (base := _base(title, key.optimizer)) is None:
        return entry
    return entry | {"text": with_interval(cells, replace(key, optimizer=base), key, found[1], found[2] or "")}


def with_interval(cells: Cells, than: CellKey, better: CellKey, text: str, pairs: str = "") -> str:
    """The text with its interval, where both cells have two pairs of seeds. pairs: how many, if it says so."""
    told = [pairs] if pairs else []
    if than in cells and better in cells:
        found = mean_gain(cells[than].completed, cells[better].completed)
        if found and found.low is not None and found.high is not None:
            told = [f"{100 * found.low:+.1f} to {100 * found.high:+.1f}", *told]
    return f"{text} ({', '.join(told)})" if told else text


def _base(title: str, entry: str) -> str | None:
    """What a column of gains is over; None of another column."""
    if title.endswith("gain"):
        return BASELINE
    if title == "against base":
        return base_of(entry) if is_level(entry) else METHOD
    if title.startswith(_OVER):
        label = title.removeprefix(_OVER)
        return next((name for name, style in optimizer_styles(OPTIMIZERS).items() if style.label == label), None)
    return None
