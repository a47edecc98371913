"""The trials that rates were chosen from, and where the page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.tunings import Tuning
from mpadam.presence import is_there
from mpadam.site.pieces import link
from mpadam.site.records import text_of
from mpadam.study.run_folder import RunFolder

_LARGEST_LOSS = 700.0  # exp of it is still a number


@dataclass(frozen=True)
class Trial:
    """A tuning trial. `why`: of a further one, why it was made. `curve`: link to its loss curve, None where it is not
    there."""

    values: str
    perplexity: str
    chosen: bool
    why: str
    curve: str | None


@dataclass(frozen=True)
class Tuned:
    """One choice of rates. `anchor`: of its lines on the page."""

    anchor: str
    model: str
    regime: str
    optimizer: str
    trials: tuple[Trial, ...]


def tuned(collected: Collected) -> list[Tuned]:
    """Every tuning of the study that has trials."""
    labels = optimizer_styles(tuning.key.optimizer for tuning in collected.tunings)
    return [
        Tuned(
            anchor=f"tuning/{tuning.key.model}/{tuning.key.regime}/{tuning.key.optimizer}",
            model=tuning.key.model,
            regime=tuning.key.regime,
            optimizer=labels[tuning.key.optimizer].label,
            trials=trials(collected, tuning, collected.paths.output),
        )
        for tuning in collected.tunings
        if tuning.trials
    ]


def anchors(found: Sequence[Tuned]) -> dict[tuple[str, ...], str]:
    """(model, regime, optimizer), as tables name a row, -> where its trials are."""
    return {(one.model, one.regime, one.optimizer): one.anchor for one in found}


def trials(collected: Collected, tuning: Tuning, here: Path) -> tuple[Trial, ...]:
    """Its trials, with links relative to the folder `here`."""
    found = []
    for index, trial in enumerate(tuning.trials):
        done = trial["status"] == "completed"
        curve = RunFolder(collected.paths.trial(tuning.key, index)).plot
        found.append(
            Trial(
                values=", ".join(f"{name} {text_of(value)}" for name, value in trial["values"].items()),
                perplexity=f"{math.exp(min(trial['val_loss'], _LARGEST_LOSS)):,.2f}" if done else str(trial["status"]),
                chosen=index == tuning.best,
                why=str(trial.get("why", "")),
                curve=link(curve, here) if is_there(curve) else None,
            )
        )
    return tuple(found)
