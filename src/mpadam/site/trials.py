"""The trials that rates were chosen from, and where the pages show them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.tunings import Tuning, trial_perplexity
from mpadam.site.records import text_of
from mpadam.site.rows import RunRow
from mpadam.study.grid import selection_key


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
    """Its trials, the chosen one among them."""
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
