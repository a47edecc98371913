"""The ablations as a figure: a panel an axis, perplexity against the levels, and the forms side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mpadam.analysis.ablations import FORM, Ablation, Level, ablation_table, ablations
from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD
from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.style import OPTIMIZERS, SYMBOLS, OptimizerStyle, optimizer_styles
from mpadam.analysis.tables import perplexity_text

PANELS_A_ROW = 4
PANEL_WIDTH, PANEL_HEIGHT, LEGEND_WIDTH = 2.3, 2.1, 1.9  # inches
LABEL_CHARACTERS = 18  # of tick labels of equal length that fit side by side
_GREY = "#444444"


def ablation_figure(collected: Collected) -> Picture:
    """M+Adam's levels and forms, of the first (model, budget, regime) that has them."""
    found = [ablation for ablation in ablations(collected) if ablation.entry == METHOD]
    shown = max(found, key=lambda ablation: len(ablation.axes), default=None)
    reference = _reference(collected, shown)
    with drawing():
        figure = _draw(shown, reference) if shown else Figure((4, 1.5))
    return Picture(
        "ablations",
        "Ablations of M+Adam",
        figure,
        _caption(shown),
        _alt(shown),
        ablation_table(collected).data,
    )


def _reference(collected: Collected, shown: Ablation | None) -> Cell | None:
    """AdamW in the same place."""
    if shown is None:
        return None
    key = CellKey(shown.model, shown.budget, shown.regime, BASELINE)
    return next((cell for cell in cells(collected.runs) if cell.key == key), None)


def _draw(shown: Ablation, reference: Cell | None) -> Figure:
    axes_names = [axis for axis in shown.axes if axis != FORM]
    rows = -(-len(axes_names) // PANELS_A_ROW)
    forms = len(shown.axes.get(FORM, ()))
    bottom = 0.3 * (forms + 1) + 0.7 if forms else 0.0
    heights = [PANEL_HEIGHT] * rows + ([bottom] if forms else [])
    figure = Figure((PANELS_A_ROW * PANEL_WIDTH + LEGEND_WIDTH, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), PANELS_A_ROW, height_ratios=heights)
    for index, axis in enumerate(axes_names):
        axes = figure.add_subplot(grid[divmod(index, PANELS_A_ROW)])
        _levels(axes, axis, shown, reference)
        if index % PANELS_A_ROW == 0:
            axes.set_ylabel("validation perplexity")
    if forms:
        _forms(figure.add_subplot(grid[rows, :]), shown, reference)
    _legend(figure, shown, reference)
    return figure


def _levels(axes: Axes, axis: str, shown: Ablation, reference: Cell | None) -> None:
    """Levels at equal distances, since some are zero and others infinite; the base's own value is filled."""
    levels = shown.axes[axis]
    style = OPTIMIZERS[METHOD]
    means = [_mean(level.cell) for level in levels]
    axes.plot(range(len(levels)), means, color=style.colour, linewidth=1.0)
    for at, level in enumerate(levels):
        _point(axes, at, level, style)
    _lines(axes, shown, reference, horizontal=True)
    axes.set_xlim(-0.4, len(levels) - 0.6)
    labels = [level.label for level in levels]
    crowded = len(labels) > 2 and len(labels) * max(map(len, labels)) > LABEL_CHARACTERS
    axes.set_xticks(range(len(levels)), labels, rotation=30 if crowded else 0)
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.15)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel(SYMBOLS.get(axis, axis))


def _point(axes: Axes, at: int, level: Level, style: OptimizerStyle) -> None:
    cell = level.cell
    if cell is None or cell.perplexity is None:
        diverged = cell is not None and bool(cell.diverged)
        axes.plot(
            at,
            0.94,
            transform=axes.get_xaxis_transform(),
            marker="x" if diverged else "$?$",
            color=style.colour,
            markersize=6,
        )
        return
    face = style.colour if level.is_base else "white"
    axes.errorbar(
        at,
        cell.perplexity.mean,
        cell.perplexity.sd,
        color=style.colour,
        marker=style.marker,
        markerfacecolor=face,
        markersize=6,
        capsize=2,
        linewidth=1,
    )


def _forms(axes: Axes, shown: Ablation, reference: Cell | None) -> None:
    """Forms from above to below, the base first, with the text of their cell beside the point."""
    forms = shown.axes[FORM]
    styles = optimizer_styles([level.cell.key.optimizer for level in forms if level.cell])
    rows: list[tuple[OptimizerStyle, Cell | None]] = [(OPTIMIZERS[METHOD], shown.base)]
    by_entry = {level.cell.key.optimizer: level.cell for level in forms if level.cell}
    rows += [(style, by_entry[entry]) for entry, style in styles.items()]
    known = [mean for _, cell in rows if math.isfinite(mean := _mean(cell))]
    for at, (style, cell) in enumerate(rows):
        if cell is not None and cell.perplexity is not None:
            axes.errorbar(
                *(cell.perplexity.mean, at),
                xerr=cell.perplexity.sd,
                color=style.colour,
                marker=style.marker,
                capsize=2,
                linewidth=1,
            )
        axes.text(1.01, at, perplexity_text(cell) or "not asked for", transform=axes.get_yaxis_transform(), va="center")
    _lines(axes, shown, reference, horizontal=False)
    axes.set_yticks(range(len(rows)), [style.label for style, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("validation perplexity, by form")
    if known:
        axes.margins(x=0.1)
    else:
        axes.set_xticks([])


def _lines(axes: Axes, shown: Ablation, reference: Cell | None, *, horizontal: bool) -> None:
    """Where M+Adam and AdamW are without the change."""
    draw = axes.axhline if horizontal else axes.axvline
    for cell, style, dash in (
        (shown.base, OPTIMIZERS[METHOD], (0, (1, 1.5))),
        (reference, OPTIMIZERS[BASELINE], (0, (5, 2))),
    ):
        if math.isfinite(mean := _mean(cell)):
            draw(mean, color=style.colour, linestyle=dash, linewidth=1.1, zorder=1)


def _mean(cell: Cell | None) -> float:
    return cell.perplexity.mean if cell is not None and cell.perplexity is not None else math.nan


def _cells(shown: Ablation) -> list[Cell]:
    return [level.cell for levels in shown.axes.values() for level in levels if level.cell is not None]


def _legend(figure: Figure, shown: Ablation, reference: Cell | None) -> None:
    method, adamw = OPTIMIZERS[METHOD], OPTIMIZERS[BASELINE]
    look: dict[str, Any] = {"color": method.colour, "marker": method.marker, "linestyle": "none"}
    handles = [
        Line2D([], [], label="own value", **look),
        Line2D([], [], label="changed", markerfacecolor="white", **look),
        Line2D([], [], label=f"{method.label}, unchanged", color=method.colour, linestyle=(0, (1, 1.5))),
    ]
    if math.isfinite(_mean(reference)):
        handles.append(Line2D([], [], label=adamw.label, color=adamw.colour, linestyle=(0, (5, 2))))
    if any(cell.diverged for cell in _cells(shown)):
        handles.append(Line2D([], [], label="a run diverged", color=_GREY, marker="x", linestyle="none"))
    if any(not cell.diverged and cell.perplexity is None for cell in _cells(shown)):
        handles.append(Line2D([], [], label="no result yet", color=_GREY, marker="$?$", linestyle="none"))
    figure.legend(handles=handles, loc="outside right upper", frameon=False, title=shown.where, alignment="left")


def _caption(shown: Ablation | None) -> str:
    if shown is None:
        return "The study asks for no level of an ablation of M+Adam."
    counts = _counts([cell for cell in _cells(shown) if cell.perplexity])
    return (
        f"Validation perplexity (lower is better) in {shown.where} when one value of M+Adam changes; learning rates "
        f"stay those of M+Adam unless the table says otherwise. Points are means over seeds ({counts}), bars one "
        "standard deviation, absent at n = 1; every panel has its own scale. Dotted: M+Adam as it is; dashed: AdamW in "
        "the same place. A panel whose points hug the dotted line shows a value that hardly matters; below, see "
        "whether a form, or the additive twin, which has no multiplicative branch, does as well as the default."
    )


def _counts(done: Sequence[Cell]) -> str:
    counts = sorted({cell.perplexity.n for cell in done if cell.perplexity})
    if not counts:
        return "no completed cell"
    return f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")


def _alt(shown: Ablation | None) -> str:
    if shown is None:
        return "An empty figure: no ablation is asked for."
    values = sum(cell.perplexity is not None for cell in _cells(shown))
    return (
        f"Perplexity against levels, a panel for each of {', '.join(a for a in shown.axes if a != FORM) or 'no axis'}, "
        f"and the forms of M+Adam; {values} of {len(_cells(shown))} points have a value. The table of ablations holds "
        "the same numbers."
    )
