"""The lines of the list of runs: what became of each run that the study asks for, and where the pages show it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    folder: of the run; page: of its cell, relative to `index.html`. note: why it has no result.
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
    note: str
    hash: str

    @property
    def budget(self) -> str:
        return f"{self.key.budget}x"

    @property
    def anchor(self) -> str:
        """Of its section on the page."""
        return f"seed{self.key.seed}"

    @property
    def href(self) -> str:
        """Of its section, relative to `index.html`."""
        return f"{quote(self.page)}#{self.anchor}"

    @property
    def title(self) -> str:
        return f"Seed {self.key.seed}"

    @property
    def cell_name(self) -> str:
        return f"{self.key.model} {self.budget} {self.key.regime} {self.optimizer}"

    @property
    def name(self) -> str:
        return f"{self.cell_name}, seed {self.key.seed}"


def run_rows(collected: Collected) -> list[RunRow]:
    """All runs that the study asks for, in the order of its grid."""
    labels = {name: style.label for name, style in optimizer_styles(collected.runs["optimizer"]).items()}
    records: list[dict[str, Any]] = collected.runs.to_dict("records")  # type: ignore[assignment]
    return [_row(run, labels, collected.paths.records) for run in records]


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
        page=f"{PAGES}/{cell}.html",
        optimizer=labels[key.optimizer],
        status=run["status"],
        perplexity=f"{run['val_ppl']:.2f}" if done else "",
        loss=f"{run['val_loss']:.4f}" if done else "",
        steps=f"{run['steps']:,}" if done else "",
        seconds=f"{run['seconds']:,.0f}" if done else "",
        note=_note(run),
        hash=run["hash"],
    )


def _note(run: dict[str, Any]) -> str:
    if run["status"] != "diverged":
        return str(run["problem"])
    return f"step {run['diverged_step']}: {run['problem']}"
