"""From an exhibit to its files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpadam.exhibits.kit.table import Table, to_text, write_table
from mpadam.exhibits.registry import Exhibit
from mpadam.exhibits.source import Source

if TYPE_CHECKING:
    from mpadam.exhibits.kit.pictures import Picture


def write(wanted: Iterable[Exhibit], source: Source) -> list[Table | Picture]:
    return [_write(exhibit, source) for exhibit in wanted]


def write_and_print(wanted: Iterable[Exhibit], source: Source) -> None:
    """The same, and the tables on standard output."""
    print("\n".join(to_text(one) for one in write(wanted, source) if isinstance(one, Table)), end="")


def _write(exhibit: Exhibit, source: Source) -> Table | Picture:
    folder = source.folder / exhibit.folder
    if exhibit.folder == "tables":  # needs no package that draws
        table = exhibit.make(source)
        assert isinstance(table, Table), exhibit.name
        write_table(table, folder)
        return table
    from mpadam.exhibits.kit.pictures import Picture, drawing, write_picture

    with drawing():
        picture = exhibit.make(source)
    assert isinstance(picture, Picture), exhibit.name
    write_picture(picture, folder)
    return picture
