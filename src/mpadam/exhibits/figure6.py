"""Figure 6: how validation loss depends on the learning rates, from the trials of the tuning (regime bf16-bf16).

A column a model. Above, AdamW's loss against its rate; below, M+Adam's as bars, one a trial, whose lower axis has the
additive rate eta_a (the paper's lr_m) and whose upper axis the multiplicative rate eta_m (lr_e). Both share a scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD
from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.style import OPTIMIZERS, SYMBOLS
from mpadam.analysis.tables import number_text
from mpadam.analysis.tunings import Tuning
from mpadam.study.tuning import trial_loss

REGIME = "bf16-bf16"
_GREY = "#444444"


@dataclass(frozen=True)
class Trial:
    """One point: rates (lr, and lr_mult for M+Adam), loss (infinite where it diverged), whether it was chosen."""

    rates: dict[str, float]
    loss: float
    chosen: bool


@dataclass(frozen=True)
class Column:
    """What was tried for one model, by increasing rates."""

    model: str
    adamw: tuple[Trial, ...]
    method: tuple[Trial, ...]

    @property
    def losses(self) -> list[float]:
        """Finite ones."""
        return [trial.loss for trial in (*self.adamw, *self.method) if math.isfinite(trial.loss)]


def columns(collected: Collected) -> list[Column]:
    """The models of which either optimizer was tuned in bf16-bf16."""
    found = {(t.key.model, t.key.optimizer): t for t in collected.tunings if t.key.regime == REGIME and t.trials}
    models = dict.fromkeys(model for model, optimizer in found if optimizer in (BASELINE, METHOD))
    return [Column(m, *(_trials(found.get((m, optimizer))) for optimizer in (BASELINE, METHOD))) for m in models]


def _trials(tuning: Tuning | None) -> tuple[Trial, ...]:
    if tuning is None:
        return ()
    chosen = tuning.best if tuning.status == "selected" else None
    trials = [Trial(dict(t["values"]), trial_loss(t), index == chosen) for index, t in enumerate(tuning.trials)]
    return tuple(sorted(trials, key=lambda trial: tuple(trial.rates.get(name, 0.0) for name in ("lr", "lr_mult"))))


def figure6(collected: Collected) -> Picture:
    """Validation loss against learning rates (paper: Fig. 6)."""
    shown = columns(collected)
    wide = max([4, *(len(column.method) for column in shown)])
    with drawing():
        figure = Figure((max(1, len(shown)) * max(2.6, 0.42 * wide + 0.9) + 1.7, 5.2), layout="constrained")
        panels = figure.subplots(2, max(1, len(shown)), sharey="col", squeeze=False)
        for above, below, column in zip(*panels, shown, strict=False):
            above.set_title(column.model, fontsize="medium")
            _points(above, column.adamw)
            _bars(below, column.method)
            _loss_axis(above, below, column)
        for first in panels[:, 0]:
            first.set_ylabel("validation loss (nats)")
            if not shown:
                _say(first, "not tuned")
        _legend(figure, shown)
    return Picture(
        "figure6",
        "Sensitivity to learning rates in bf16 (Figure 6 of the paper)",
        figure,
        _caption(collected, shown),
        _alt(shown),
        _frame(shown),
    )


def _points(axes: Axes, trials: Sequence[Trial]) -> None:
    """AdamW: loss against its rate."""
    axes.set_xlabel(f"additive rate {SYMBOLS['lr']}")
    if not trials:
        _say(axes, "not tuned")
        return
    style = OPTIMIZERS[BASELINE]
    rates = [trial.rates["lr"] for trial in trials]
    axes.set_xscale("log")
    axes.plot(rates, [_finite(trial.loss) for trial in trials], color=style.colour, marker=style.marker, markersize=5)
    for trial in trials:
        if trial.chosen:
            axes.plot(trial.rates["lr"], trial.loss, **_CIRCLE)
    _crosses(axes, [trial.rates["lr"] for trial in trials if not math.isfinite(trial.loss)], style.colour)
    axes.set_xlim(min(rates) / 1.5, max(rates) * 1.5)
    axes.xaxis.set_major_locator(FixedLocator(rates))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
    axes.tick_params(axis="x", labelrotation=45)


_CIRCLE: dict[str, Any] = {"marker": "o", "fillstyle": "none", "markersize": 11, "color": _GREY, "linestyle": "none"}


def _bars(axes: Axes, trials: Sequence[Trial]) -> None:
    """M+Adam: a bar a trial, its two rates below and above."""
    axes.set_xlabel(f"additive rate {SYMBOLS['lr']}")
    if not trials:
        _say(axes, "not tuned")
        return
    colour = OPTIMIZERS[METHOD].colour
    heights = [_finite(trial.loss) for trial in trials]
    bars = axes.bar(range(len(trials)), heights, color=colour, width=0.7, edgecolor="white")
    for bar, trial in zip(bars, trials, strict=True):
        if trial.chosen:
            bar.set(edgecolor="black", linewidth=1.6, hatch="//")
    _crosses(axes, [index for index, trial in enumerate(trials) if not math.isfinite(trial.loss)], colour)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(trials) - 0.4)
    above = axes.secondary_xaxis("top")
    above.set_xlabel(f"multiplicative rate {SYMBOLS['lr_mult']}")
    for one, rate in ((axes, "lr"), (above, "lr_mult")):
        one.set_xticks(range(len(trials)), [_rate_text(trial, rate) for trial in trials], rotation=45)
        one.tick_params(axis="x", length=2)


def _rate_text(trial: Trial, rate: str) -> str:
    return number_text(trial.rates[rate]) if rate in trial.rates else "fixed"


def _loss_axis(above: Axes, below: Axes, column: Column) -> None:
    """One scale for both, cut off below the least loss: bars show differences, not ratios."""
    if not column.losses:
        above.yaxis.set_major_locator(NullLocator())
        return
    least, most = min(column.losses), max(column.losses)
    room = max(0.12 * (most - least), 0.01)
    above.set_ylim(least - 2 * room, most + 1.5 * room)
    above.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    best = [trial.loss for trial in column.adamw if math.isfinite(trial.loss)]
    if best:
        below.axhline(min(best), color=OPTIMIZERS[BASELINE].colour, linestyle=(0, (5, 2)), linewidth=1.2)


def _crosses(axes: Axes, places: Sequence[float], colour: str) -> None:
    """Trials that diverged, at the top of the panel."""
    look: dict[str, Any] = {"marker": "x", "linestyle": "none", "color": colour, "markersize": 6}
    axes.plot(places, [0.96] * len(places), transform=axes.get_xaxis_transform(), **look)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="#555555")
    axes.set_xticks([])


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.nan


def _legend(figure: Figure, shown: Sequence[Column]) -> None:
    adamw, method = OPTIMIZERS[BASELINE], OPTIMIZERS[METHOD]
    handles = [
        Line2D([], [], color=adamw.colour, marker=adamw.marker, label=adamw.label),
        Line2D([], [], color=adamw.colour, linestyle=(0, (5, 2)), label=f"best of {adamw.label}"),
        Patch(color=method.colour, label=method.label),
        Line2D([], [], label=f"chosen, {adamw.label}", **_CIRCLE),
        Patch(facecolor=method.colour, edgecolor="black", hatch="//", label=f"chosen, {method.label}"),
    ]
    if any(not math.isfinite(t.loss) for column in shown for t in (*column.adamw, *column.method)):
        handles.append(Line2D([], [], color=_GREY, marker="x", linestyle="none", label="diverged"))
    figure.legend(handles=handles, loc="outside right upper", frameon=False, title=REGIME, alignment="left")


def _caption(collected: Collected, shown: Sequence[Column]) -> str:
    if not shown:
        return f"The study tuned neither AdamW nor M+Adam in {REGIME} yet."
    tuning = collected.config.tuning
    share = "" if tuning.steps_fraction == 1 else f" and {tuning.steps_fraction:.0%} of its steps"
    return (
        f"Validation loss of the tuning's trials in {REGIME} (n = 1 a trial, budget {tuning.budget}x{share}, on the "
        "half of the validation text that rates are chosen on) against the learning rates. Above AdamW, below M+Adam: "
        "a bar a trial, its additive rate on the lower axis, its multiplicative rate on the upper one. Both rows of a "
        "column share their scale, which does not start at 0: compare differences, not heights. See how much the loss "
        "moves within the range tried, and whether M+Adam's bars stay below the dashed line, the best of AdamW."
    )


def _alt(shown: Sequence[Column]) -> str:
    return (
        "Validation loss against learning rates, points for AdamW and bars for M+Adam, a column for each of "
        f"{', '.join(column.model for column in shown) or 'no model'}; {sum(len(c.losses) for c in shown)} trials have "
        "a value."
    )


def _frame(shown: Sequence[Column]) -> pd.DataFrame:
    """A row a trial; a diverged one has no loss."""
    rows = [
        {
            "model": column.model,
            "optimizer": optimizer,
            "lr": trial.rates.get("lr"),
            "lr_mult": trial.rates.get("lr_mult"),
            "val_loss": trial.loss if math.isfinite(trial.loss) else None,
            "chosen": trial.chosen,
        }
        for column in shown
        for optimizer, trials in ((BASELINE, column.adamw), (METHOD, column.method))
        for trial in trials
    ]
    return pd.DataFrame(rows, columns=["model", "optimizer", "lr", "lr_mult", "val_loss", "chosen"])
