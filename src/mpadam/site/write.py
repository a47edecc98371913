"""The site on disk: `index.html`, and below `pages/` a page for each cell and the style that they share.

The list of runs is in `index.html` itself, so that it opens with a handful of requests (the figures), whatever the
number of runs. The pages are made aside and put in place whole, so pages of cells that the study no longer asks for go.
"""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from mpadam.analysis.collect import Collected
from mpadam.atomic import remove, write_text
from mpadam.site.cell_page import render_cell
from mpadam.site.page import render_page
from mpadam.site.rows import PAGES, RunRow, by_cell, run_rows


def environment() -> Environment:
    """The templates. Everything that comes from a file is escaped; a name that does not exist is an error."""
    return Environment(
        loader=PackageLoader("mpadam.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_site(collected: Collected) -> Path:
    """Write all of it; returns `index.html`."""
    output = collected.paths.output
    output.mkdir(parents=True, exist_ok=True)
    rows, templates = run_rows(collected), environment()
    aside = output / f".{PAGES}.tmp"
    remove(aside)  # of a call that was killed
    try:
        _write_pages(collected, rows, templates, aside)
        remove(output / PAGES)
        (aside / PAGES).rename(output / PAGES)
    finally:
        remove(aside)
    index = output / "index.html"
    write_text(index, render_page(templates.get_template("index.html"), collected, rows))
    return index


def _write_pages(collected: Collected, rows: list[RunRow], templates: Environment, folder: Path) -> None:
    template = templates.get_template("cell.html")
    for cell in by_cell(rows).values():
        path = folder / cell[0].page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_cell(template, collected, cell), encoding="utf-8")
    style = folder / PAGES / "style.css"
    style.parent.mkdir(parents=True, exist_ok=True)
    style.write_text(templates.get_template("style.css").render(), encoding="utf-8")
