"""`index.html`: one static page of a study, from its summaries and the tables and figures made of them.

No server, no script, no network: everything is relative to the study's folder, styles are in the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mpadam.analysis.cells import CellKey
from mpadam.analysis.collect import STATUSES, Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.site.facts import below_paper_scale, facts, model_facts
from mpadam.site.pieces import Download, link, read_pieces
from mpadam.study.paths import StudyPaths
from mpadam.training.folder import RunFolder


@dataclass(frozen=True)
class RunRow:
    """A line of the list of runs. `cell`: the folder that it shares with its other seeds."""

    cell: str
    model: str
    budget: str
    regime: str
    optimizer: str
    seed: int
    status: str
    perplexity: str
    loss: str
    steps: str
    seconds: str
    problem: str
    files: tuple[Download, ...]


def render_page(collected: Collected) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader("mpadam.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    output = collected.paths.output
    rows = run_rows(collected)
    return environment.get_template("index.html").render(
        study=collected.config.study,
        counts={status: collected.count(status) for status in STATUSES},
        total=len(rows),
        facts=facts(collected),
        models=model_facts(collected),
        small=below_paper_scale(collected),
        pieces=read_pieces(output),
        cells=_by_cell(rows),
        lost=[row for row in rows if row.status != "completed"],
        above_unigram=collected.above_unigram()["folder"].tolist(),
        refused_tunings=[
            f"{t.key.model}/{t.key.regime}/{t.key.optimizer}/{t.problem}"
            for t in collected.tunings
            if t.status == "refused"
        ],
        downloads=[
            Download(path.name, link(path, output))
            for path in (output / "tables/runs.csv", output / "study.yaml", collected.paths.manifest)
            if path.exists()
        ],
    )


def run_rows(collected: Collected) -> list[RunRow]:
    """All runs that the study asks for, in the order of its grid."""
    labels = {name: style.label for name, style in optimizer_styles(collected.runs["optimizer"]).items()}
    records: list[dict[str, Any]] = collected.runs.to_dict("records")  # type: ignore[assignment]
    return [_row(run, labels, collected.paths) for run in records]


def _by_cell(rows: list[RunRow]) -> dict[str, list[RunRow]]:
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.cell, []).append(row)
    return groups


def _row(run: dict[str, Any], labels: dict[str, str], paths: StudyPaths) -> RunRow:
    done = run["status"] == "completed"
    return RunRow(
        cell=CellKey(run["model"], run["budget"], run["regime"], run["optimizer"]).folder,
        model=run["model"],
        budget=f"{run['budget']}x",
        regime=run["regime"],
        optimizer=labels[run["optimizer"]],
        seed=run["seed"],
        status=run["status"],
        perplexity=f"{run['val_ppl']:.2f}" if done else "",
        loss=f"{run['val_loss']:.4f}" if done else "",
        steps=f"{run['steps']:,}" if done else "",
        seconds=f"{run['seconds']:,.0f}" if done else "",
        problem=_problem(run),
        files=_files(paths.root / run["folder"], paths.output),
    )


def _problem(run: dict[str, Any]) -> str:
    if run["status"] != "diverged":
        return str(run["problem"])
    return f"step {run['diverged_step']}: {run['problem']}"


def _files(folder: Path, root: Path) -> tuple[Download, ...]:
    """Links to what is there."""
    run = RunFolder(folder)
    named = {
        "loss": run.plot,
        "summary": run.summary,
        "run.yaml": run.run_file,
        "metrics": run.metrics,
        "log": run.log,
        "environment": run.environment,
        "failure": run.failure,
    }
    return tuple(Download(label, link(path, root)) for label, path in named.items() if path.exists())
