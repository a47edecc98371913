"""The lines of the list of runs: what became of each run that the study asks for, and where its page is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.analysis.cells import CellKey
from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.study.grid import RunKey

#: below the folder of the page
PAGES = "pages"


@dataclass(frozen=True)
class RunRow:
    """A run in a reader's words; what it has no number for is empty.

    cell: the folder that it shares with its other seeds, and the anchor of their lines.
    folder: of the run; page: of the run, relative to `index.html`.
    """

    key: RunKey
    cell: str
    folder: Path
    page: str
    optimizer: str
    status: str
    perplexity: str
    loss: str
    steps: str
    seconds: str
    problem: str

    @property
    def budget(self) -> str:
        return f"{self.key.budget}x"

    @property
    def name(self) -> str:
        key = self.key
        return f"{key.model} {self.budget} {key.regime} {self.optimizer}, seed {key.seed}"


def run_rows(collected: Collected) -> list[RunRow]:
    """All runs that the study asks for, in the order of its grid."""
    labels = {name: style.label for name, style in optimizer_styles(collected.runs["optimizer"]).items()}
    records: list[dict[str, Any]] = collected.runs.to_dict("records")  # type: ignore[assignment]
    return [_row(run, labels, collected.paths.root) for run in records]


def by_cell(rows: list[RunRow]) -> dict[str, list[RunRow]]:
    """The seeds of each cell."""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.cell, []).append(row)
    return groups


def _row(run: dict[str, Any], labels: dict[str, str], root: Path) -> RunRow:
    done = run["status"] == "completed"
    key = RunKey(run["model"], run["budget"], run["regime"], run["optimizer"], run["seed"])
    cell = CellKey(key.model, key.budget, key.regime, key.optimizer).folder
    return RunRow(
        key=key,
        cell=cell,
        folder=root / run["folder"],
        page=f"{PAGES}/{cell}/seed{key.seed}.html",
        optimizer=labels[key.optimizer],
        status=run["status"],
        perplexity=f"{run['val_ppl']:.2f}" if done else "",
        loss=f"{run['val_loss']:.4f}" if done else "",
        steps=f"{run['steps']:,}" if done else "",
        seconds=f"{run['seconds']:,.0f}" if done else "",
        problem=_problem(run),
    )


def _problem(run: dict[str, Any]) -> str:
    if run["status"] != "diverged":
        return str(run["problem"])
    return f"step {run['diverged_step']}: {run['problem']}"
