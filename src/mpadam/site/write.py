"""The site on disk: `index.html`, which has what was run, tables, figures and the list of runs, and below `pages/` a
page for each cell and the style that they share.

No server, no network: everything is relative to the study's folder, style and script are in the page. The script makes
tables sortable and gives them filters; without it the page says the same.

The list of runs is in `index.html` itself, so that it opens with a handful of requests (the figures), whatever the
number of runs. The pages are made aside and put in place whole, so pages of cells that the study no longer asks for go.
"""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mpadam.analysis.cells import cells
from mpadam.analysis.collect import STATUSES, Collected
from mpadam.atomic import remove, write_text
from mpadam.claims.reported import below_paper_scale
from mpadam.presence import is_there
from mpadam.site.abstract import abstract
from mpadam.site.cell_page import render_cell
from mpadam.site.claims import read_claims
from mpadam.site.curves import loss_panels
from mpadam.site.facts import facts, model_facts, next_to_the_paper
from mpadam.site.pieces import UNFOLDED, contents, figures_of, link, neighbours, read_pieces, tables_of
from mpadam.site.rows import PAGES, RunRow, by_cell, run_rows, tuning_links


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


# --- index.html -------------------------------------------------------------------------------------------------------


def render_page(template: Template, collected: Collected, rows: list[RunRow]) -> str:
    output = collected.paths.output
    pieces = read_pieces(output, {cell.key: cell for cell in cells(collected.runs)})
    tables, figures = tables_of(pieces), figures_of(pieces)
    claims = read_claims(output, collected.digest)
    perplexities = collected.config.report == "all"
    learned_nothing = set(collected.above_unigram()["folder"])
    return template.render(
        study=collected.config.study,
        abstract=abstract(collected, claims),
        chart=next((piece for piece in pieces if piece.name == "summary"), None),
        counts={status: collected.count(status) for status in STATUSES},
        total=len(rows),
        facts=facts(collected),
        models=model_facts(collected),
        small=below_paper_scale(collected),
        perplexities=perplexities,
        claims=claims,
        claims_table=next((piece for piece in pieces if piece.name == "claims" and piece.image is None), None),
        tables=tables,
        figures=figures,
        unfolded=UNFOLDED,
        contents=[("Tables", contents(tables)), ("Figures", contents(figures))],
        neighbours=neighbours(collected.paths),
        paper=next_to_the_paper(collected),
        cells=by_cell(rows),
        curves=loss_panels(rows) if perplexities else [],
        tunings=tuning_links(collected, rows),
        lost=[row for row in rows if row.status != "completed"],
        above_unigram=[r for r in rows if r.folder.relative_to(collected.paths.records).as_posix() in learned_nothing],
        refused_tunings=[
            f"{t.key.model}/{t.key.regime}/{t.key.optimizer}/{t.problem}"
            for t in collected.tunings
            if t.status == "refused"
        ],
        files=[
            (path.name, link(path, output))
            for path in (output / "tables/runs.csv", output / "study.yaml", collected.paths.manifest)
            if is_there(path)
        ],
    )
