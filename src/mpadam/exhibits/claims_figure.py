"""The forest plot of the claims: differences in ln perplexity with their intervals, a panel a claim, a line a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mpadam.analysis.claims.examine import Verdicts
from mpadam.analysis.claims.reported import below_paper_scale
from mpadam.analysis.claims.verdicts import (
    CONTRADICTED,
    INCONCLUSIVE,
    NOT_BRACKETED,
    NOT_RUN,
    NOT_TESTABLE,
    SUPPORTED,
    CellVerdict,
    Judged,
)
from mpadam.analysis.collect import Collected
from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.style import BLACK, GREY, OptimizerStyle, optimizer_styles

#: inches; HEADING: title and tick labels of a panel, TICKS: of these the part below it
LINE, HEADING, TICKS, WIDTH = 0.19, 0.6, 0.3, 9.0
LEFT, RIGHT, TOP, BOTTOM = 3.3, 1.15, 0.65, 0.35
_KINDS = ("perplexity", "trend")
_WORDS = {
    SUPPORTED: "+ supported",
    CONTRADICTED: "− contradicted",
    INCONCLUSIVE: "? inconclusive",
    NOT_TESTABLE: "not testable here",
    NOT_BRACKETED: "not bracketed",
    NOT_RUN: "not run",
}


@dataclass(frozen=True)
class Panel:
    """A claim and the cells of it that have a number or could have one."""

    judged: Judged
    cells: tuple[CellVerdict, ...]


def panels(verdicts: Verdicts) -> list[Panel]:
    """Claims about perplexity that have a cell in the study, in the order of the file."""
    return [Panel(one, one.cells) for one in verdicts.judged if one.claim.metric.kind in _KINDS and one.cells]


def claims_figure(verdicts: Verdicts, collected: Collected) -> Picture:
    """The paper has no such figure; it is what its Table 2 would need."""
    shown = panels(verdicts)
    styles = optimizer_styles(key.optimizer for p in shown for c in p.cells if (key := c.sample.cell) is not None)
    with drawing():
        figure, axes = _places([len(panel.cells) for panel in shown] or [3])
        for ax, panel in zip(axes, shown, strict=False):
            _draw(ax, panel, styles)
        if not shown:
            axes[0].text(0.5, 0.5, "no cell of a claim", transform=axes[0].transAxes, ha="center", color="#555555")
            axes[0].set_axis_off()
        axes[-1].set_xlabel("difference in ln perplexity; to the right: in favour of what is named first")
        _legend(figure)
    return Picture(
        "claims",
        "Claims: differences and their intervals",
        figure,
        _caption(shown, verdicts, collected),
        _alt(shown),
        _frame(shown),
    )


def _places(lines: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """A figure with a panel of so many lines each, one below the other; laid out by hand, in inches, for there may be
    twenty panels, and the solver of matplotlib takes half a minute over them."""
    height = TOP + sum(LINE * n + HEADING for n in lines) + BOTTOM
    figure = Figure((WIDTH, height))
    axes, bottom = [], height - TOP
    for n in lines:
        bottom -= LINE * n + HEADING
        place = (LEFT / WIDTH, (bottom + TICKS) / height, (WIDTH - LEFT - RIGHT) / WIDTH, LINE * n / height)
        axes.append(figure.add_axes(place))
    return figure, axes


def _draw(axes: Axes, panel: Panel, styles: dict[str, OptimizerStyle]) -> None:
    """One claim: its threshold, and a line for each cell with both intervals, the mean, and the verdict."""
    claim = panel.judged.claim
    title = f"{claim.id}: {claim.title}: {panel.judged.verdict}"
    axes.set_title(title, fontsize="medium", loc="left", x=-0.95 * LEFT / (WIDTH - LEFT - RIGHT))
    margins = [claim.threshold] if claim.direction in ("above", "below") else [-claim.threshold, claim.threshold]
    for threshold in margins:
        axes.axvline(threshold, color=GREY, linestyle=(0, (5, 2)), linewidth=1)
    axes.axvline(0, color=BLACK, linewidth=0.6)
    several = len({cell.sample.contrast for cell in panel.cells}) > 1
    for place, cell in enumerate(panel.cells):
        sample = cell.sample
        style = styles[sample.cell.optimizer] if sample.cell else OptimizerStyle("", GREY, "o")
        _draw_cell(axes, place, cell, style)
        axes.text(1.01, place, _WORDS[cell.verdict], transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)
    labels = [f"{c.sample.contrast}, {c.sample.where}" if several else c.sample.where for c in panel.cells]
    axes.set_yticks(range(len(labels)), labels, fontsize=7.5)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.tick_params(axis="x", labelsize=8)


def _draw_cell(axes: Axes, place: int, cell: CellVerdict, style: OptimizerStyle) -> None:
    if cell.sample.diverged:
        axes.plot(0.985, place, transform=axes.get_yaxis_transform(), marker="x", color=style.colour, markersize=6)
        return
    if cell.mean is None:
        return
    if cell.interval and cell.family_interval:
        axes.plot(cell.family_interval, [place, place], color=style.colour, linewidth=0.9)
        axes.plot(cell.interval, [place, place], color=style.colour, linewidth=2.6, solid_capstyle="butt")
    tested = cell.verdict in (SUPPORTED, CONTRADICTED)
    axes.plot(
        cell.mean,
        place,
        marker=style.marker,
        markersize=6,
        color=style.colour,
        markerfacecolor=style.colour if tested else "white",
    )


def _legend(figure: Figure) -> None:
    handles = [
        Line2D([], [], color=GREY, linewidth=2.6, label="95%, this cell alone"),
        Line2D([], [], color=GREY, linewidth=0.9, label="95%, all cells of the claim"),
        Line2D([], [], color=GREY, linestyle=(0, (5, 2)), linewidth=1, label="least difference that matters"),
        Line2D([], [], color=GREY, marker="o", linestyle="none", label="verdict"),
        Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="none", label="no verdict"),
        Line2D([], [], color=GREY, marker="x", linestyle="none", label="a run diverged"),
    ]
    figure.legend(handles=handles, loc="upper center", ncols=3, frameon=False, fontsize=8)


def _caption(shown: Sequence[Panel], verdicts: Verdicts, collected: Collected) -> str:
    counts = sorted({cell.n for panel in shown for cell in panel.cells if cell.n})
    n = f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "") if counts else "no pair of runs yet"
    scale = " Models far below the paper's: directions at most." if below_paper_scale(collected) else ""
    return (
        f"Mean difference in ln perplexity over paired seeds ({n}), a panel a claim with its own scale, in the marker "
        "of the optimizer that the claim is about. Thick: Student's 95% interval of the cell alone; thin: wide enough "
        "for all cells of the claim together. Look whether the interval lies on one side of the dashed line: to the "
        "right speaks for what is named first. A diverged run leaves no mean. claims.yaml "
        f"{verdicts.claims.sha256[:12]}.{scale}"
    )


def _alt(shown: Sequence[Panel]) -> str:
    told = ", ".join(f"{panel.judged.claim.id} {panel.judged.verdict}" for panel in shown) or "no claim has a cell yet"
    return f"Forest plot of differences in ln perplexity with intervals, a panel for each claim: {told}."


def _frame(shown: Sequence[Panel]) -> pd.DataFrame:
    """A row a line of the plot; a cell with a diverged run has no numbers."""
    rows = []
    for panel in shown:
        for cell in panel.cells:
            drawn = cell if not cell.sample.diverged else CellVerdict(cell.sample, cell.verdict)
            low, high = drawn.interval or (None, None)
            family_low, family_high = drawn.family_interval or (None, None)
            rows.append(
                {
                    "claim": panel.judged.claim.id,
                    "contrast": cell.sample.contrast,
                    "where": cell.sample.where,
                    "n": cell.n,
                    "mean": None if cell.sample.diverged else cell.mean,
                    **{"low": low, "high": high, "family_low": family_low, "family_high": family_high},
                    "verdict": cell.verdict,
                }
            )
    columns = ["claim", "contrast", "where", "n", "mean", "low", "high", "family_low", "family_high", "verdict"]
    return pd.DataFrame(rows, columns=columns)
