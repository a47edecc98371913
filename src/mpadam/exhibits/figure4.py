"""Figures drawn from runs.

With matplotlib, from `mpadam.analysis.cells`; seaborn's own aggregation is not used, since it drops a failed run
without a word. Looks come from `mpadam.analysis.style`, files from `mpadam.analysis.pictures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mpadam.analysis.cells import BASELINE, Cell, cells, cells_frame
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import MAIN, main_entries, with_runs
from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.style import OptimizerStyle, RegimeStyle, optimizer_styles, regime_styles

PANEL_WIDTH, PANEL_HEIGHT, LEGEND_WIDTH = 3.0, 2.9, 1.9  # inches
PANELS_A_ROW = 3


# --- Figure 4 --------------------------------------------------------------------------------------------------------

#: what the paper's own Figure 4 shows: AdamW and M+Adam in these regimes, and one optimizer more in one of them
PAPER_REGIMES = ("bf16-bf16", "bf16-fp8", "fp8-fp8")
PAPER_EXTRA = ("bf16-bf16", "adamw-sr")
MOST_LINES = 8  # in a panel that a reader can follow


@dataclass(frozen=True)
class _Line:
    """One optimizer in one regime, at increasing budgets."""

    optimizer: OptimizerStyle
    regime: RegimeStyle
    cells: tuple[Cell, ...]
    shift: float  # factor on the budget that keeps the bars of neighbours apart


@dataclass(frozen=True)
class _Panel:
    """by_regime: regimes, not budgets, along the horizontal axis; for cells of a single budget."""

    title: str
    cells: tuple[Cell, ...]
    by_regime: bool = False


def figure4(collected: Collected) -> Picture:
    """Validation perplexity against budget: a panel a model, a line an optimizer and regime (paper: Fig. 4)."""
    return _perplexity_figure(
        _by_model(collected, cells(collected.runs)),
        "figure4",
        "Perplexity against budget (Figure 4 of the paper)",
    )


def figure4_as_in_paper(collected: Collected) -> Picture:
    """Figure 4 with the lines that the paper shows, and no others."""

    def shown(regime: str, optimizer: str) -> bool:
        return (regime in PAPER_REGIMES and optimizer in MAIN) or (regime, optimizer) == PAPER_EXTRA

    return figure4(with_runs(collected, shown))


def figure4_all(collected: Collected) -> Picture:
    """Our version: every regime, and AdamW with fp32 weights in each panel; a panel a model and way to keep weights."""
    found = cells(main_entries(collected).runs)
    panels = _by_model(collected, found)
    if any(_lines_of(panel) > MOST_LINES for panel in panels):
        panels = _by_masters(collected, found)
    return _perplexity_figure(panels, "figure4-all", "Perplexity against budget in all regimes")


def _by_model(collected: Collected, found: Sequence[Cell]) -> list[_Panel]:
    models = dict.fromkeys(cell.key.model for cell in found)
    return [
        _Panel(f"{model} ({_unit(collected, model)})", tuple(cell for cell in found if cell.key.model == model))
        for model in models
    ]


def _by_masters(collected: Collected, found: Sequence[Cell]) -> list[_Panel]:
    """A panel a way to keep weights and model, with AdamW's fp32 lines as reference in each."""

    def masters(cell: Cell) -> str:
        return collected.config.regimes[cell.key.regime].masters

    order = dict.fromkeys(collected.config.regimes[regime].masters for regime in regime_styles(_regimes(found)))
    panels = []
    for name, model in product((m for m in order if m != "fp32"), dict.fromkeys(cell.key.model for cell in found)):
        own = [cell for cell in found if masters(cell) == name and cell.key.model == model]
        compute = {(collected.config.regimes[cell.key.regime].compute, cell.key.budget) for cell in own}
        reference = [
            cell
            for cell in found
            if (masters(cell), cell.key.model, cell.key.optimizer) == ("fp32", model, BASELINE)
            and (collected.config.regimes[cell.key.regime].compute, cell.key.budget) in compute
        ]
        budgets = {cell.key.budget for cell in own}
        if len(budgets) == 1:
            panels.append(_Panel(f"{model}, {name} weights, {budgets.pop()}x", (*reference, *own), by_regime=True))
        elif own:
            panels.append(_Panel(f"{model}, {name} weights", (*reference, *own)))
    return panels


def _regimes(found: Sequence[Cell]) -> list[str]:
    return [cell.key.regime for cell in found]


def _lines_of(panel: _Panel) -> int:
    return len({(cell.key.regime, cell.key.optimizer) for cell in panel.cells})


def _perplexity_figure(panels: Sequence[_Panel], name: str, title: str) -> Picture:
    found = list({cell.key: cell for panel in panels for cell in panel.cells}.values())
    optimizers = optimizer_styles(cell.key.optimizer for cell in found)
    regimes = regime_styles(_regimes(found))
    rows = max(1, -(-len(panels) // PANELS_A_ROW))
    columns = max(1, -(-len(panels) // rows))
    with drawing():
        figure = Figure((columns * PANEL_WIDTH + LEGEND_WIDTH, rows * PANEL_HEIGHT), layout="constrained")
        for index, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, index + 1)
            axes.set_title(panel.title, fontsize="medium")
            lines = _lines(panel.cells, optimizers, regimes)
            (_panel_by_regime if panel.by_regime else _panel)(axes, lines)
            if index % columns == 0:
                axes.set_ylabel("validation perplexity")
            below = panels[index + columns] if index + columns < len(panels) else None
            if not panel.by_regime and (below is None or below.by_regime):
                axes.set_xlabel("training budget (multiples of 1x)")
        _legend(figure, list(optimizers.values()), list(regimes.values()), any(cell.diverged for cell in found))
    alt = _alt(found, [panel.title for panel in panels])
    return Picture(name, title, figure, _caption(found), alt, cells_frame(found))


def _lines(
    found: Sequence[Cell], optimizers: dict[str, OptimizerStyle], regimes: dict[str, RegimeStyle]
) -> list[_Line]:
    pairs = [(o, r) for r in regimes for o in optimizers if any(_is(cell, o, r) for cell in found)]
    step = min(0.06, 0.4 / len(pairs))
    lines = []
    for index, (optimizer, regime) in enumerate(pairs):
        own = sorted((cell for cell in found if _is(cell, optimizer, regime)), key=lambda cell: cell.key.budget)
        shift = 2.0 ** (step * (index - (len(pairs) - 1) / 2))
        lines.append(_Line(optimizers[optimizer], regimes[regime], tuple(own), shift))
    return lines


def _is(cell: Cell, optimizer: str, regime: str) -> bool:
    return cell.key.optimizer == optimizer and cell.key.regime == regime


def _unit(collected: Collected, model: str) -> str:
    """What budget 1 of a model is."""
    shape = collected.config.models[model]
    if shape.steps_1x is not None:
        return f"1x = {shape.steps_1x:,} steps"
    return f"1x = {shape.tokens_per_parameter:g} positions a parameter"


def _panel(axes: Axes, lines: Sequence[_Line]) -> None:
    axes.set_xscale("log", base=2)
    budgets = sorted({cell.key.budget for line in lines for cell in line.cells})
    axes.set_xlim(budgets[0] / 1.3, budgets[-1] * 1.3)
    axes.xaxis.set_major_locator(FixedLocator(budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    for line in lines:
        _draw_means(axes, line, [cell.key.budget * line.shift for cell in line.cells])
    _perplexity_axis(axes, lines)
    for line in lines:
        _draw_diverged(axes, line, [cell.key.budget * line.shift for cell in line.cells])


def _panel_by_regime(axes: Axes, lines: Sequence[_Line]) -> None:
    """Cells of one budget: a place a regime, its optimizers side by side."""
    regimes = list(dict.fromkeys(line.regime for line in lines))
    optimizers = list(dict.fromkeys(line.optimizer for line in lines))
    axes.set_xticks(range(len(regimes)), [regime.label for regime in regimes], rotation=25)
    axes.set_xlim(-0.5, len(regimes) - 0.5)
    places = [
        [regimes.index(line.regime) + 0.22 * (optimizers.index(line.optimizer) - (len(optimizers) - 1) / 2)]
        for line in lines
    ]
    for line, place in zip(lines, places, strict=True):
        _draw_means(axes, line, place)
    _perplexity_axis(axes, lines)
    for line, place in zip(lines, places, strict=True):
        _draw_diverged(axes, line, place)


def _perplexity_axis(axes: Axes, lines: Sequence[_Line]) -> None:
    if any(cell.perplexity for line in lines for cell in line.cells):
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.margins(y=0.12)
    else:
        axes.yaxis.set_major_locator(NullLocator())
        axes.grid(visible=False)
        axes.text(0.5, 0.5, "no completed cell", transform=axes.transAxes, ha="center", color="#555555")


def _draw_means(axes: Axes, line: _Line, x: Sequence[float]) -> None:
    """Means joined by a line that breaks where a cell has none; a bar only where there is a spread."""
    means = [cell.perplexity.mean if cell.perplexity else float("nan") for cell in line.cells]
    axes.plot(x, means, **_look(line.optimizer, line.regime))
    for at, cell in zip(x, line.cells, strict=True):
        if cell.perplexity and cell.perplexity.sd is not None:
            axes.errorbar(
                at, cell.perplexity.mean, cell.perplexity.sd, color=line.optimizer.colour, capsize=2, linewidth=1
            )


def _draw_diverged(axes: Axes, line: _Line, x: Sequence[float]) -> None:
    """A cross at the top of the panel for a cell with a diverged run."""
    crosses = [at for at, cell in zip(x, line.cells, strict=True) if cell.diverged]
    axes.plot(
        crosses,
        [0.97] * len(crosses),
        transform=axes.get_xaxis_transform(),
        linestyle="none",
        marker="x",
        color=line.optimizer.colour,
        markersize=6,
    )


def _look(optimizer: OptimizerStyle, regime: RegimeStyle) -> dict[str, Any]:
    return {
        "color": optimizer.colour,
        "marker": optimizer.marker,
        "linestyle": regime.dash,
        "fillstyle": regime.fill,
        "markerfacecoloralt": "white",
        "markersize": 5,
        "linewidth": 1.3,
    }


_HEADINGS = ("optimizer", "weights-compute")


def _legend(
    figure: Figure, optimizers: Sequence[OptimizerStyle], regimes: Sequence[RegimeStyle], diverged: bool
) -> None:
    """Colour and marker say the optimizer, dash and filling the regime: two short lists, outside the panels."""
    grey = OptimizerStyle("", "#444444", "o")
    solid = RegimeStyle("", "-", "full")
    handles = [
        _heading(_HEADINGS[0]),
        *(Line2D([], [], label=o.label, **_look(o, solid)) for o in optimizers),
        _heading(_HEADINGS[1]),
        *(Line2D([], [], label=r.label, **_look(grey, r)) for r in regimes),
    ]
    if diverged:
        handles.append(Line2D([], [], label="a run diverged", color="#444444", marker="x", linestyle="none"))
    legend = figure.legend(handles=handles, loc="outside right upper", frameon=False, handlelength=3.2)
    for text in legend.get_texts():
        if text.get_text() in _HEADINGS:
            text.set_fontweight("bold")


def _heading(text: str) -> Line2D:
    return Line2D([], [], label=text, linestyle="none", marker=" ")


def _caption(found: Sequence[Cell]) -> str:
    counts = sorted({cell.perplexity.n for cell in found if cell.perplexity})
    n = "no completed cell" if not counts else f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")
    diverged = sum(bool(cell.diverged) for cell in found)
    missing = sum(not cell.completed and not cell.diverged for cell in found)
    lost = [f"{diverged} with a diverged run have a cross and no mean"] if diverged else []
    lost += [f"{missing} have no result yet"] if missing else []
    return (
        "Validation perplexity (lower is better) against the training budget, in multiples of the model's 1x, on a "
        f"logarithmic axis; every panel has its own scale. Points are means over seeds ({n}), bars one standard "
        "deviation, absent at n = 1; points of one budget are moved apart sideways."
        + (f" Of {len(found)} cells, {' and '.join(lost)}." if lost else "")
    )


def _alt(found: Sequence[Cell], panels: Sequence[str]) -> str:
    shown = sum(cell.perplexity is not None for cell in found)
    return (
        f"Line plots of validation perplexity against training budget, one panel for each of {', '.join(panels)}; "
        f"{shown} of {len(found)} points have a value. Table 2 holds the same numbers."
    )
