"""From an exhibit to its files."""

from __future__ import annotations

from collections.abc import Iterable

from mpadam.exhibits.kit.pictures import Picture, drawing, write_picture
from mpadam.exhibits.kit.render import write_table
from mpadam.exhibits.kit.table import Table
from mpadam.exhibits.registry import Exhibit
from mpadam.exhibits.source import Source


def write(wanted: Iterable[Exhibit], source: Source) -> list[Table | Picture]:
    """Make these exhibits and write their files into the folder of the source."""
    made = []
    for exhibit in wanted:
        with drawing():
            one = exhibit.make(source)
        folder = source.folder / exhibit.folder
        write_table(one, folder) if isinstance(one, Table) else write_picture(one, folder)
        made.append(one)
    return made
