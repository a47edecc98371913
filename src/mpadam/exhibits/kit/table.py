"""What a table is: what a reader sees, cell by cell, and the tidy data that it was made of."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from mpadam.analysis.cells import CellKey
from mpadam.analysis.style import optimizer_styles, regime_styles
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
