"""The lines of the list of runs, what became of each run that the study asks for, and the trials that rates were chosen
from; and where the pages show them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mpadam.analysis.cells import CellKey
from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.tunings import Tuning, trial_perplexity
from mpadam.site.records import text_of
from mpadam.study.grid import RunKey, selection_key

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
        return f"seed{self.key.seed}"

    @property
    def href(self) -> str:
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


@dataclass(frozen=True)
class Trial:
    """A tuning trial. anchor: of its section. note: whether it was chosen, and of a further one, why it was made."""

    anchor: str
    title: str
    status: str
    perplexity: str
    note: str
    folder: Path
    hash: str


def run_rows(collected: Collected) -> list[RunRow]:
    labels = {name: style.label for name, style in optimizer_styles(collected.runs["optimizer"]).items()}
    records: list[dict[str, Any]] = collected.runs.to_dict("records")  # type: ignore[assignment]
    return [_row(run, labels, collected.paths.records) for run in records]


def by_cell(rows: list[RunRow]) -> dict[str, list[RunRow]]:
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
        note=f"step {run['diverged_step']}: {run['problem']}" if run["status"] == "diverged" else str(run["problem"]),
        hash=run["hash"],
    )


def tuning_links(collected: Collected, rows: Sequence[RunRow]) -> dict[tuple[str, ...], str]:
    """(model, regime, optimizer), as tables name a row -> its trials, on the page of the first cell with its rates."""
    labels = optimizer_styles(tuning.key.optimizer for tuning in collected.tunings)
    pages = {selection_key(collected.config, row.key): row.page for row in reversed(rows)}
    return {
        (t.key.model, t.key.regime, labels[t.key.optimizer].label): f"{quote(pages[t.key])}#trials"
        for t in collected.tunings
        if t.trials
    }


def trials(collected: Collected, tuning: Tuning) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            anchor=f"trial{number}",
            title=f"Trial {number}: "
            + ", ".join(f"{name} {text_of(value)}" for name, value in trial["values"].items()),
            status=trial["status"],
            perplexity=f"{trial_perplexity(trial):,.2f}" if trial["status"] == "completed" else "",
            note=_note(trial, chosen=number == tuning.best),
            folder=collected.paths.trial(tuning.key, number),
            hash=str(trial.get("hash", "")),
        )
        for number, trial in enumerate(tuning.trials)
    )


def _note(trial: Mapping[str, Any], *, chosen: bool) -> str:
    why = [f"further trial: {trial['why']}"] if "why" in trial else []
    return "; ".join([*(["chosen"] if chosen else []), *why])
