"""M+Adam, the strongest alternative and the best other form of M+Adam, each against AdamW in the same regime, in
percent of perplexity with intervals. Look whether an interval lies to the right of zero, and whether M+Adam's lies
further to the right than the alternative's.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.statistics import gain
from mpadam.analysis.style import BLACK, GREY, optimizer_styles
from mpadam.claims.effects import Effect, Effects
from mpadam.claims.words import GAIN
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import WIDTH, Picture, counts_text
from mpadam.exhibits.source import Source

NAME = "summary"
TITLE = "M+Adam, the strongest alternative and the best form against AdamW"
NEEDS = "runs"
PLACE = 1
IN_ALL = True
CHECKED = {"figures/summary.csv": ("mean",)}

LINE, LEFT, RIGHT, TOP, BOTTOM = 0.21, 2.75, 2.05, 0.55, 0.5  # inches: a line, and what is around the panel
_CHOSEN, _UNEQUAL = "*", "†"


def make(source: Source) -> Picture:
    effects = Effects(source.collected)
    shown = [one for one in effects.gains if (one.gain.model, one.gain.budget) == effects.shown]
    height = TOP + BOTTOM + LINE * max(len(shown), 3)
    figure = Figure((WIDTH, height))
    box = (LEFT / WIDTH, BOTTOM / height, (WIDTH - LEFT - RIGHT) / WIDTH, (height - TOP - BOTTOM) / height)
    axes = figure.add_axes(box)
    if shown:
        _draw(axes, shown)
        _legend(figure, "".join(map(_marks, shown)))
    else:
        kit.say(axes, "no pair of runs asked for")
    told = "; ".join(f"{one.gain.regime} {_label(one)} {_text(one)}" for one in shown) or "none yet"
    alt = f"Gains over AdamW in perplexity: {told}."
    return Picture(NAME, TITLE, figure, _caption(effects, shown), alt, _frame(shown))


def _draw(axes: Axes, shown: Sequence[Effect]) -> None:
    styles = optimizer_styles(effect.entry for effect in shown)
    across = axes.get_yaxis_transform()
    for at, effect in enumerate(shown):
        style, cell = styles[effect.entry], effect.gain
        for interval, width in ((cell.family_interval, 0.9), (cell.interval, 2.6)):
            if interval is not None:
                axes.plot([100 * gain(end) for end in interval], [at, at], color=style.colour, linewidth=width)
        if cell.mean is not None and not cell.diverged:
            fill = "white" if cell.untestable else style.colour
            axes.plot(100 * gain(cell.mean), at, style.marker, color=style.colour, markerfacecolor=fill, markersize=6)
        axes.text(1.02, at, _text(effect), transform=across, va="center")
        if at == 0 or cell.regime != shown[at - 1].gain.regime:
            axes.text(-LEFT / (WIDTH - LEFT - RIGHT) + 0.01, at, cell.regime, transform=across, va="center")
            axes.axhline(at - 0.5, color=GREY, linewidth=0.4)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    labels = [f"{_label(one)}{_marks(one)}" for one in shown]
    axes.set(yticks=range(len(shown)), yticklabels=labels, ylim=(len(shown) - 0.5, -0.5))
    axes.set_xlabel(f"gain in perplexity over {_BASE} in the same regime, percent; to the right is better")
    axes.grid(visible=False, axis="y")
    axes.tick_params(left=False)


def _label(effect: Effect) -> str:
    return optimizer_styles([effect.entry])[effect.entry].label


_BASE = optimizer_styles([BASELINE])[BASELINE].label


def _marks(effect: Effect) -> str:
    return _CHOSEN * (effect.candidates > 1) + _UNEQUAL * bool(effect.gain.untestable)


def _text(effect: Effect) -> str:
    cell = effect.gain
    if cell.mean is None or cell.diverged:
        return "div." if cell.diverged else "no pair of runs yet"
    return GAIN.text(cell.mean, cell.family_interval)


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
    where = "{} {}x".format(*effects.shown) if effects.shown else "no model yet"
    other = " Other models and budgets are in Table 2." if len(scales) > 1 else ""
    return (
        f"Gain in perplexity over {_BASE} in the same regime, mean over paired seeds ({n}), {where}.{other} Thin, and "
        "in brackets: Student's 95% interval for all candidates in all regimes together; thick: of the cell alone. "
        "Alternatives are all other optimizers without fp32 weights (rounding tricks, error feedback, AdamW with other "
        "betas), forms are M+Adam's variants and its own rounding tricks; ablations and the additive twin, a control, "
        f"are neither. {_CHOSEN} Chosen after the fact: of several, that with the largest mean gain in its regime. "
        f"{_UNEQUAL} Its rates were tuned for another optimizer or regime, which favours AdamW."
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
