"""M+Adam, the strongest alternative and the best other form of M+Adam, each against AdamW in the same regime, in
percent of perplexity with intervals. Look whether an interval lies to the right of zero, and whether M+Adam's lies
further to the right than the alternative's.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.style import BLACK, GREY, optimizer_styles
from mpadam.claims.effects import Effect, Effects
from mpadam.claims.words import GAIN, gain
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import WIDTH, Picture
from mpadam.exhibits.kit.words import counts_text
from mpadam.exhibits.source import Source

NAME = "summary"
TITLE = "M+Adam, the strongest alternative and the best form against AdamW"
NEEDS = "runs"
PLACE = 1
IN_ALL = True
CHECKED = {"figures/summary.csv": ("mean",)}

#: inches: a line, the room between regimes, and what is around the panel
LINE, GAP, LEFT, RIGHT, TOP, BOTTOM = 0.19, 0.09, 2.75, 1.9, 0.55, 0.5
_CHOSEN, _UNEQUAL = "*", "†"


def make(source: Source) -> Picture:
    """A line for each optimizer of a regime, at the model and budget with the most regimes."""
    effects = Effects(source.collected)
    shown = [one for one in effects.gains if (one.gain.model, one.gain.budget) == effects.shown]
    places = _places(shown)
    height = TOP + BOTTOM + (max(places, default=3 * LINE) + LINE)
    figure = Figure((WIDTH, height))
    box = (LEFT / WIDTH, BOTTOM / height, (WIDTH - LEFT - RIGHT) / WIDTH, (height - TOP - BOTTOM) / height)
    axes = figure.add_axes(box)
    if shown:
        _draw(axes, shown, places)
        _legend(figure, "".join(map(_marks, shown)))
    else:
        kit.say(axes, "no pair of runs asked for")
    alt = f"Gains over AdamW in perplexity: {'; '.join(map(_told, shown)) or 'none yet'}."
    return Picture(NAME, TITLE, figure, _caption(effects, shown), alt, _frame(shown))


def _places(shown: Sequence[Effect]) -> list[float]:
    """Inches from the top of the panel, a line each; regimes are kept apart."""
    found, at = [], 0.0
    for number, effect in enumerate(shown):
        new = number > 0 and effect.gain.regime != shown[number - 1].gain.regime
        at += LINE * (number > 0) + GAP * new
        found.append(at)
    return found


def _draw(axes: Axes, shown: Sequence[Effect], places: Sequence[float]) -> None:
    styles = optimizer_styles(effect.entry for effect in shown)
    across = axes.get_yaxis_transform()
    for number, (effect, at) in enumerate(zip(shown, places, strict=True)):
        style, cell = styles[effect.entry], effect.gain
        for interval, width in ((cell.family_interval, 0.9), (cell.interval, 2.6)):
            if interval is not None:
                axes.plot([100 * gain(end) for end in interval], [at, at], color=style.colour, linewidth=width)
        if cell.mean is not None and not cell.diverged:
            fill = "white" if cell.untestable else style.colour
            axes.plot(100 * gain(cell.mean), at, style.marker, color=style.colour, markerfacecolor=fill, markersize=6)
        axes.text(1.02, at, _text(effect), transform=across, va="center")
        if number == 0 or cell.regime != shown[number - 1].gain.regime:
            axes.text(-LEFT / (WIDTH - LEFT - RIGHT) + 0.01, at, cell.regime, transform=across, va="center")
            if number:
                axes.axhline(at - (LINE + GAP) / 2, color=GREY, linewidth=0.4)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    labels = [f"{styles[one.entry].label}{_marks(one)}" for one in shown]
    axes.set(yticks=places, yticklabels=labels, ylim=(places[-1] + LINE / 2, -LINE / 2))
    axes.set_xlabel(f"gain in perplexity over {_BASE} in the same regime, percent; to the right is better")
    axes.grid(visible=False, axis="y")
    axes.tick_params(left=False)


_BASE = optimizer_styles([BASELINE])[BASELINE].label


def _marks(effect: Effect) -> str:
    return _CHOSEN * (effect.candidates > 1) + _UNEQUAL * bool(effect.gain.untestable)


def _text(effect: Effect) -> str:
    cell = effect.gain
    if cell.mean is None or cell.diverged:
        return "div." if cell.diverged else "no pair of runs yet"
    return GAIN.text(cell.mean, cell.interval)


def _told(effect: Effect) -> str:
    return f"{effect.gain.regime} {optimizer_styles([effect.entry])[effect.entry].label} {_text(effect)}"


def _legend(figure: Figure, marks: str) -> None:
    handles = [
        kit.line("95%, this cell alone", linewidth=2.6),
        kit.line("95%, all candidates in all regimes together", linewidth=0.9),
    ]
    if _CHOSEN in marks:
        handles.append(kit.line(f"{_CHOSEN} best of several, chosen after the fact", linestyle="none"))
    if _UNEQUAL in marks:
        label = f"{_UNEQUAL} rates not tuned for it"
        handles.append(kit.line(label, marker="o", markerfacecolor="white", linestyle="none"))
    figure.legend(handles=handles, loc="upper center", ncols=2, frameon=False)


def _caption(effects: Effects, shown: Sequence[Effect]) -> str:
    n = counts_text((one.gain.n for one in shown if one.gain.n), "no pair of runs yet")
    scales = {place[:2] for place in effects.places}
    where = " ".join(f"{part}" for part in effects.shown) + "x" if effects.shown else "no model yet"
    other = " Other models and budgets are in Table 2." if len(scales) > 1 else ""
    return (
        f"Gain in perplexity over {_BASE} in the same regime, mean over paired seeds ({n}), {where}.{other} Thick, and in "
        "brackets: Student's 95% interval of the cell alone; thin: of all candidates in all regimes together. Alternatives "
        "are all other optimizers without fp32 weights (rounding tricks, error feedback, AdamW with other betas), forms "
        "are M+Adam's variants and its own rounding tricks; ablations and the additive twin, a control, are neither. "
        f"{_CHOSEN} Chosen after the fact: of several, that with the largest mean gain in its regime. {_UNEQUAL} Its rates "
        "were tuned for another optimizer or regime, which favours AdamW."
    )


def _frame(shown: Sequence[Effect]) -> pd.DataFrame:
    """A row per line, in ln(perplexity)."""
    columns = ["model", "budget", "regime", "optimizer", "kind", "candidates", "n", "mean"]
    ends = ["low", "high", "family_low", "family_high"]
    rows = [
        (*(one.gain.model, one.gain.budget, one.gain.regime, one.entry, one.kind, one.candidates, one.gain.n),
         None if one.gain.diverged else one.gain.mean,
         *(one.gain.interval or (None, None)), *(one.gain.family_interval or (None, None)))
        for one in shown
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns + ends).astype(dict.fromkeys(["mean", *ends], "float64"))
