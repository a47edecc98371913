"""Validation loss of the tuning's trials against the learning rates, in bf16 (the paper's Figure 6): AdamW above,
M+Adam below, where each bar has an additive rate on the lower axis and a multiplicative rate on the upper. Look at
how much the loss moves within the range tried. Scales do not start at zero.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD
from mpadam.analysis.style import OPTIMIZERS, SYMBOLS
from mpadam.analysis.texts import number_text
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source
from mpadam.study.tuning import trial_loss

NAME = "figure6"
TITLE = "Sensitivity to learning rates in bf16 (Figure 6 of the paper)"
NEEDS = "runs"
PLACE = 60
CHECKED = {"figures/figure6.csv": ("val_loss", "lr", "lr_mult")}

REGIME = "bf16-bf16"
HEIGHTS, MOST_IN_A_ROW = (2.3, 3.1), 3  # inches; columns of one row of panels
MOST_LABELS = 14  # of rates that a panel has room for
_COLUMNS = ["model", "optimizer", "lr", "lr_mult", "val_loss", "chosen"]


def trials(study: Collected) -> pd.DataFrame:
    """A row per trial, by increasing rates; a diverged one has no loss. Models with M+Adam, if it was tuned for any in
    bf16, else those of AdamW.
    """
    rows = []
    for tuning in study.tunings:
        if tuning.key.regime == REGIME and tuning.key.optimizer in (BASELINE, METHOD):
            best = tuning.best if tuning.status == "selected" else None
            for index, trial in enumerate(tuning.trials):
                loss, rates = trial_loss(trial), trial["values"]
                found = loss if math.isfinite(loss) else None
                rates = (rates.get("lr"), rates.get("lr_mult"))
                rows.append((tuning.key.model, tuning.key.optimizer, *rates, found, index == best))
    several = {row[0] for row in rows if row[1] == METHOD}
    rows = [row for row in rows if row[0] in several or not several]
    order = {name: place for place, name in enumerate(dict.fromkeys(row[0] for row in rows))}
    rows.sort(key=lambda row: (order[row[0]], row[1] != BASELINE, row[2] or 0.0, row[3] or 0.0))
    numbers = dict.fromkeys(("lr", "lr_mult", "val_loss"), "float64")
    return pd.DataFrame(rows, columns=_COLUMNS).astype({**numbers, "chosen": "bool"})


def make(source: Source) -> Picture:
    study = source.collected
    found = trials(study)
    models = list(dict.fromkeys(found["model"]))
    figure, pairs = kit.pairs(len(models), columns=MOST_IN_A_ROW, heights=HEIGHTS)
    for (above, below), model in zip(pairs, models or [""], strict=True):
        _column(above, below, found[found["model"] == model], model)
    kit.legend(figure, {REGIME: _entries(found)})
    values = f"{int(found['val_loss'].notna().sum())} trials have a value"
    what = "Validation loss against learning rates, points for AdamW and bars for M+Adam"
    alt = alternative(what, models, "The CSV file next to the figure", shown=values)
    return Picture(NAME, TITLE, figure, _caption(study, models), alt, found)


def _column(above: Axes, below: Axes, own: pd.DataFrame, model: str) -> None:
    adamw, method = (own[own["optimizer"] == name].reset_index(drop=True) for name in (BASELINE, METHOD))
    _points(above, adamw)
    _bars(below, method)
    above.set(title=model, ylabel="validation loss (nats)")
    below.set(ylabel="validation loss (nats)")
    losses = own["val_loss"].dropna()
    if losses.empty:
        return
    room = max(0.12 * (losses.max() - losses.min()), 0.01)
    for axes, drawn in ((above, adamw), (below, method)):
        if len(drawn):
            axes.set_ylim(losses.min() - 2 * room, losses.max() + 1.5 * room)
            kit.few_ticks(axes)
    if len(method) and adamw["val_loss"].notna().any():
        below.axhline(adamw["val_loss"].min(), color=OPTIMIZERS[BASELINE].colour, linestyle=kit.DASHED, linewidth=1.2)


def _points(axes: Axes, shown: pd.DataFrame) -> None:
    if shown.empty:
        kit.say(axes, "not tuned")
        return
    style = OPTIMIZERS[BASELINE]
    path = so.Path(color=style.colour, marker=style.marker, pointsize=5, linewidth=1.3)
    kit.draw(kit.plot(shown, x="lr", y="val_loss").add(path), axes)
    chosen = shown[shown["chosen"]]
    axes.plot(chosen["lr"], chosen["val_loss"], color=kit.INK, **kit.CIRCLE)
    kit.crosses(axes, shown.loc[shown["val_loss"].isna(), "lr"].tolist(), style.colour)
    rates = sorted(set(shown["lr"]))
    axes.set(xscale="log", xlim=(rates[0] / 1.5, rates[-1] * 1.5), xlabel=f"additive rate {SYMBOLS['lr']}")
    _name_rates(axes, rates, rates)
    axes.xaxis.set_minor_locator(NullLocator())


def _bars(axes: Axes, shown: pd.DataFrame) -> None:
    if shown.empty:
        kit.say(axes, "not tuned")
        return
    colour = OPTIMIZERS[METHOD].colour
    bar = so.Bar(color=colour, alpha=1, edgewidth=0, width=0.7)
    kit.draw(kit.plot(shown.assign(place=shown.index), x="place", y="val_loss").add(bar), axes)
    chosen = shown[shown["chosen"]]
    axes.bar(chosen.index, chosen["val_loss"], width=0.7, color="none", **_CHOSEN)
    kit.crosses(axes, shown.index[shown["val_loss"].isna()].tolist(), colour)
    axes.grid(visible=False, axis="x")
    axes.set(xlim=(-0.6, len(shown) - 0.4), xlabel=f"additive rate {SYMBOLS['lr']}")
    above = axes.secondary_xaxis("top")
    above.set_xlabel(f"multiplicative rate {SYMBOLS['lr_mult']}")
    for one, rate in ((axes, "lr"), (above, "lr_mult")):
        _name_rates(one, shown.index.tolist(), shown[rate].tolist())


def _name_rates(axes: Any, places: Sequence[float], rates: Sequence[float]) -> None:
    """Rates at their places, upright; of many every second, or third."""
    every = -(-len(places) // MOST_LABELS)
    labels = [number_text(rate) if pd.notna(rate) else "fixed" for rate in rates]
    axes.set_xticks(list(places)[::every], labels[::every], rotation=90)
    axes.tick_params(axis="x", length=2)


_CHOSEN: dict[str, Any] = {"edgecolor": "black", "linewidth": 1.4, "hatch": "///"}


def _entries(found: pd.DataFrame) -> Sequence[Line2D | Patch]:
    adamw, method = OPTIMIZERS[BASELINE], OPTIMIZERS[METHOD]
    lost = kit.diverged_entry("diverged") if found["val_loss"].isna().any() else []
    return [
        kit.line(adamw.label, color=adamw.colour, marker=adamw.marker),
        kit.line(f"best of {adamw.label}", color=adamw.colour, linestyle=kit.DASHED),
        kit.patch(method.label, color=method.colour),
        kit.line(f"chosen, {adamw.label}", **kit.CIRCLE),
        kit.patch(f"chosen, {method.label}", facecolor=method.colour, **_CHOSEN),
        *lost,
    ]


def _caption(study: Collected, models: Sequence[str]) -> str:
    if not models:
        return f"The study tuned neither AdamW nor M+Adam in {REGIME} yet."
    tuning = study.config.tuning
    share = "" if tuning.steps_fraction == 1 else f" and {tuning.steps_fraction:.0%} of its steps"
    return (
        f"Validation loss of the tuning's trials in {REGIME} (n = 1 per trial, budget {tuning.budget}x{share}, on the "
        "half of the validation text that rates are chosen on) against the learning rates. Above AdamW, below M+Adam: "
        "one bar per trial, its additive rate on the lower axis, its multiplicative rate on the upper one. Both rows "
        "of a column share their scale, which does not start at 0: compare differences, not heights. See how much the "
        "loss moves within the range tried, and whether M+Adam's bars stay below the dashed line, the best of AdamW."
    )
