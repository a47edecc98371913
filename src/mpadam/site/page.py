"""`index.html`: what was run, tables, figures and the list of runs, from summaries and what the analysis made of them.

No server, no network: everything is relative to the study's folder, style and script are in the page. The script makes
tables sortable and gives them filters; without it the page says the same.
"""

from jinja2 import Template

from mpadam.analysis.cells import cells
from mpadam.analysis.collect import STATUSES, Collected
from mpadam.claims.reported import below_paper_scale
from mpadam.presence import is_there
from mpadam.site.abstract import abstract
from mpadam.site.claims import read_claims
from mpadam.site.curves import loss_panels
from mpadam.site.facts import facts, model_facts
from mpadam.site.paper import beside_the_paper
from mpadam.site.pieces import UNFOLDED, contents, figures_of, link, neighbours, read_pieces, tables_of
from mpadam.site.rows import RunRow, by_cell, tuning_links


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
        paper=beside_the_paper(collected),
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
