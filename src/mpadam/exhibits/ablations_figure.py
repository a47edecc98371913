"""The ablations as pictures: a panel for each value that was changed, filled where it is M+Adam's own; below, the
forms and the additive twin. Look for panels whose points leave the dotted line, and for forms that do as well
without a multiplicative branch.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mpadam.analysis.ablations import FORM, Ablation, Level, ablations, levels_frame
from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells, cells_frame
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD
from mpadam.analysis.style import OPTIMIZERS, SYMBOLS, optimizer_styles
from mpadam.analysis.texts import perplexity_text
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.perplexity import with_bars
from mpadam.exhibits.kit.pictures import Picture, alternative, seeds_text
from mpadam.exhibits.source import Source

NAME = "ablations"
TITLE = "Ablations of M+Adam"
NEEDS = "runs"
PLACE = 70

COLUMNS, HEIGHT = 3, 2.1
ROW = 0.3  # inches of a form
LABEL_CHARACTERS = 9  # of tick labels that fit next to each other
_METHOD, _BASELINE = OPTIMIZERS[METHOD], OPTIMIZERS[BASELINE]


def make(source: Source) -> Picture:
    """M+Adam's levels and forms, of the (model, budget, regime) that has most of them."""
    found = ablations(source.collected)
    own = [ablation for ablation in found if ablation.entry == METHOD]
    shown = max(own, key=lambda ablation: len(ablation.axes), default=None)
    if shown is None:
        figure, _ = kit.panels(0, columns=1, height=1.5, empty="no ablation is asked for")
    else:
        figure = _draw(shown, _reference(source.collected, shown))
    names = [axis for axis in shown.axes if axis != FORM] if shown else []
    drawn = _cells(shown) if shown else []
    values = f"{sum(cell.perplexity is not None for cell in drawn)} of {len(drawn)} points have a value"
    alt = alternative(
        "Perplexity against levels, and of the forms of M+Adam", names, "The table of ablations", shown=values
    )
    return Picture(NAME, TITLE, figure, _caption(shown), alt, levels_frame(found))


def _reference(study: Collected, shown: Ablation) -> Cell | None:
    key = CellKey(shown.model, shown.budget, shown.regime, BASELINE)
    return next((cell for cell in cells(study.runs) if cell.key == key), None)


def _draw(shown: Ablation, reference: Cell | None) -> Any:
    names = [axis for axis in shown.axes if axis != FORM]
    rows = -(-len(names) // COLUMNS)
    forms = len(shown.axes.get(FORM, ()))
    heights = [HEIGHT] * rows + ([ROW * (forms + 1) + 0.6] if forms else [])
    figure = kit.page(sum(heights))
    grid = figure.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    for index, axis in enumerate(names):
        axes = figure.add_subplot(grid[divmod(index, COLUMNS)])
        _levels(axes, axis, shown.axes[axis])
        _lines(axes.axhline, shown, reference)
        axes.set_ylabel("perplexity" if index % COLUMNS == 0 else "")
    if forms:
        axes = figure.add_subplot(grid[rows, :])
        _forms(axes, shown)
        _lines(axes.axvline, shown, reference)
    kit.legend(figure, {shown.where.replace(", ", "\n"): _entries(shown, reference)})
    return figure


def _levels(axes: Axes, axis: str, levels: Sequence[Level]) -> None:
    """Levels at equal distances, since some are zero and others infinite; the base's own value is filled."""
    frame = _frame([level.cell for level in levels]).assign(own=[level.is_base for level in levels])
    if frame["mean"].notna().any():
        dot = so.Dot(color=_METHOD.colour, marker=_METHOD.marker, pointsize=6, edgewidth=1)
        drawn = (
            kit.plot(frame, x="at", y="mean")
            .add(so.Path(color=_METHOD.colour, linewidth=1.0))
            .add(so.Range(color=_METHOD.colour), ymin="low", ymax="high")
            .add(dot, fill="own", legend=False)
            .scale(fill={True: True, False: False})
        )
        kit.draw(drawn, axes)
        axes.margins(y=0.15)
        kit.few_ticks(axes, most=5)
    for at, level in enumerate(levels):
        _lost(axes, at, level.cell)
    labels = [level.label for level in levels]
    crowded = len(labels) > 2 and len(labels) * max(map(len, labels)) > LABEL_CHARACTERS
    axes.set(xlim=(-0.4, len(levels) - 0.6), xlabel=SYMBOLS.get(axis, axis).replace(", ", ",\n"))
    kit.fixed_ticks(axes, range(len(levels)), labels, rotation=30 if crowded else 0)
    axes.grid(visible=False, axis="x")


def _forms(axes: Axes, shown: Ablation) -> None:
    """Forms from above to below, the base first, with the text of their cell next to the point."""
    forms = {level.cell.key.optimizer: level.cell for level in shown.axes[FORM]}
    found = {METHOD: shown.base, **{entry: forms[entry] for entry in optimizer_styles(forms)}}
    styles = optimizer_styles(found)
    frame = _frame([cell for cell in found.values() if cell])
    frame = frame.assign(at=frame["optimizer"].map(list(found).index))
    if frame["mean"].notna().any():
        drawn = (
            kit.plot(frame, y="at", x="mean", color="optimizer", marker="optimizer")
            .add(so.Dot(), legend=False)
            .add(so.Range(), xmin="low", xmax="high", orient="y", legend=False)
            .scale(**kit.styled(styles))
        )
        kit.draw(drawn, axes)
        axes.margins(x=0.1)
    else:
        axes.set_xticks([])
    for at, cell in enumerate(found.values()):
        axes.text(1.01, at, perplexity_text(cell) or "not asked for", transform=axes.get_yaxis_transform(), va="center")
    axes.set_yticks(range(len(found)), [styles[entry].label for entry in found])
    axes.set(ylim=(len(found) - 0.5, -0.5), xlabel="validation perplexity, by form", ylabel="")
    axes.grid(visible=False, axis="y")


def _frame(found: Sequence[Cell]) -> pd.DataFrame:
    """at, mean, low, high: a row per cell, with the ends of a bar of one standard deviation."""
    return with_bars(cells_frame(found)).assign(at=range(len(found)))


def _lost(axes: Axes, at: int, cell: Cell) -> None:
    """A cross for a diverged run, a question mark where there is no result yet."""
    if cell.perplexity is None:
        mark = "x" if cell.diverged else "$?$"
        axes.plot(at, 0.94, transform=axes.get_xaxis_transform(), marker=mark, color=_METHOD.colour, markersize=6)


def _lines(draw: Any, shown: Ablation, reference: Cell | None) -> None:
    """Where M+Adam and AdamW are without the change; draw: a panel's axhline or axvline."""
    for cell, style, dash in ((shown.base, _METHOD, kit.DOTTED), (reference, _BASELINE, kit.DASHED)):
        if cell is not None and cell.perplexity is not None:
            draw(cell.perplexity.mean, color=style.colour, linestyle=dash, linewidth=1.1, zorder=1)


def _cells(shown: Ablation) -> list[Cell]:
    return [level.cell for levels in shown.axes.values() for level in levels]


def _entries(shown: Ablation, reference: Cell | None) -> list[Line2D]:
    style: dict[str, Any] = {"color": _METHOD.colour, "marker": _METHOD.marker, "linestyle": "none"}
    found = [
        kit.line("own value", **style),
        kit.line("changed", markerfacecolor="white", **style),
        kit.line(f"{_METHOD.label}, unchanged", color=_METHOD.colour, linestyle=kit.DOTTED),
    ]
    if reference is not None and reference.perplexity is not None:
        found.append(kit.line(_BASELINE.label, color=_BASELINE.colour, linestyle=kit.DASHED))
    if any(cell.diverged for cell in _cells(shown)):
        found += kit.diverged_entry()
    if any(not cell.diverged and cell.perplexity is None for cell in _cells(shown)):
        found.append(kit.line("no result yet", marker="$?$", linestyle="none"))
    return found


def _caption(shown: Ablation | None) -> str:
    if shown is None:
        return "The study asks for no level of an ablation of M+Adam."
    return (
        f"Validation perplexity (lower is better) in {shown.where} when one value of M+Adam changes; learning rates "
        "stay those of M+Adam unless the table says otherwise. Points are means over seeds "
        f"({seeds_text(_cells(shown))}), bars one standard deviation, absent at n = 1; every panel has its own "
        "scale. Dotted: M+Adam as it is; dashed: AdamW in the same place. A panel whose points lie on the dotted line "
        "shows a value that hardly matters; below, see whether a form, or the additive twin, which has no "
        "multiplicative branch, does as well as the default."
    )
