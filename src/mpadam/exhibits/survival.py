"""Figures of update survival along training, one for each regime: is M+Adam's multiplicative branch alive at large |w|,
where AdamW's updates are rounded away?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from mpadam.analysis.entries import is_level
from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.probes import Looks
from mpadam.analysis.style import BLACK, BLUE, VERMILLION, OptimizerStyle, optimizer_styles
from mpadam.probes.outputs import survival_figure

PROJECTIONS = ("attention", "mlp", "projection")
FEWEST = 100  # intended updates of a bin that is drawn
WIDTH, HEIGHT, COLUMNS = 2.5, 2.0, 4
ZERO = "-inf"  # the bin of weights that are zero
_ZERO = 2.5  # binades from the lowest bin down to the place of zero
#: branch -> colour, dash, label
BRANCHES: dict[str, tuple[str, Any, str]] = {
    "additive": (BLUE, "-", "additive part alone"),
    "multiplicative": (VERMILLION, (0, (5, 1.5)), "multiplicative part alone\n(twin: its second branch)"),
    "both": (BLACK, (0, (1, 1.5)), "both together"),
}
_WEIGHTS = "#dddddd"


def survival_shares(looks: Looks, regime: str) -> pd.DataFrame:
    """optimizer, branch, bin -> intended, survived, share: projections, summed over all looks of the regime's runs.

    Branch `weights`: share of the weights that lie in the bin.
    """
    own = looks.of("survival", "weights")
    own = own[(own["regime"] == regime) & own["role"].isin(PROJECTIONS)]
    own = own.assign(branch=own["branch"].where(own["quantity"] == "survival", "weights"))
    own = own.assign(survived=(own["value"] * own["count"]).round())
    grouped = own.groupby(["optimizer", "branch", "bin"], sort=False)[["count", "survived"]].sum().reset_index()
    whole = grouped.groupby(["optimizer", "branch"])["count"].transform("sum")
    share = (grouped["survived"] / grouped["count"]).where(grouped["branch"] != "weights", grouped["count"] / whole)
    place = pd.to_numeric(grouped["bin"])
    table = grouped.assign(share=share, place=place, survived=grouped["survived"].astype("int64"))
    table.loc[table["branch"] == "weights", "survived"] = 0
    table = table.sort_values(["optimizer", "branch", "place"], kind="stable")
    return table.rename(columns={"count": "intended"})[["optimizer", "branch", "bin", "intended", "survived", "share"]]


def survival_picture(looks: Looks, regime: str) -> Picture:
    """A panel an optimizer of the regime: share of intended updates that change the stored weight, against |w|."""
    shares = survival_shares(looks, regime)
    levels = set(filter(is_level, shares["optimizer"]))
    drawn = shares[~shares["optimizer"].isin(levels) & (shares["intended"] >= FEWEST)]
    styles = optimizer_styles(drawn["optimizer"].tolist())
    columns = min(COLUMNS, max(1, len(styles)))
    rows = max(1, -(-len(styles) // columns))
    with drawing():
        figure = Figure((columns * WIDTH + 2.2, rows * HEIGHT + 0.4), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel().tolist()
        for axes in panels[len(styles) :]:
            axes.set_visible(False)
        if styles:
            low, high = _ends(drawn)
            for axes, (name, style) in zip(panels, styles.items(), strict=False):
                _panel(axes, drawn[drawn["optimizer"] == name], style, low)
            _name_axes(panels[: len(styles)], columns, low, high)
            figure.legend(handles=_legend(), loc="outside right upper", frameon=False, handlelength=2.6)
        else:
            panels[0].set_visible(True)
            panels[0].text(0.5, 0.5, "no look yet", transform=panels[0].transAxes, ha="center", color="#555555")
    title = f"Which updates survive along training: {regime}"
    return Picture(survival_figure(regime), title, figure, _caption(regime), _alt(regime, list(styles)), shares)


def _ends(drawn: pd.DataFrame) -> tuple[int, int]:
    """Exponents of the lowest bin that is drawn, and of the end of the highest."""
    exponents = pd.to_numeric(drawn.loc[drawn["bin"] != ZERO, "bin"])
    return (int(exponents.min()), int(exponents.max()) + 1) if len(exponents) else (0, 1)


def _places(shares: pd.DataFrame, low: int) -> list[float]:
    """Where bins lie on the axis: in the middle of their binade, zero left of them all."""
    return [low - _ZERO if place == ZERO else int(place) + 0.5 for place in shares["bin"]]


def _panel(axes: Axes, shares: pd.DataFrame, style: OptimizerStyle, low: int) -> None:
    axes.set_title(style.label, fontsize="medium", loc="left")
    weights = shares[shares["branch"] == "weights"]
    axes.bar(_places(weights, low), weights["share"].tolist(), width=0.9, color=_WEIGHTS, linewidth=0)
    for branch, (colour, dash, _) in BRANCHES.items():
        own = shares[shares["branch"] == branch]
        look: dict[str, Any] = {"color": colour, "linewidth": 1.3, "marker": ".", "markersize": 4}
        for part, style_of_part in ((own[own["bin"] != ZERO], dash), (own[own["bin"] == ZERO], "none")):
            axes.plot(_places(part, low), part["share"].tolist(), linestyle=style_of_part, **look)


def _name_axes(panels: Sequence[Axes], columns: int, low: int, high: int) -> None:
    ticks = [e for e in range(low, high + 1) if e % 4 == 0]
    for index, axes in enumerate(panels):
        axes.set_ylim(-0.04, 1.04)
        axes.set_xlim(low - _ZERO - 0.8, high + 0.2)
        axes.xaxis.set_major_locator(FixedLocator([low - _ZERO, *ticks]))
        axes.set_xticklabels(["0", *(f"$2^{{{e}}}$" for e in ticks)])
        if index % columns == 0:
            axes.set_ylabel("share that survives")
        if index + columns >= len(panels):
            axes.set_xlabel("|w|")
            axes.tick_params(labelbottom=True)


def _legend() -> list[Line2D | Patch]:
    lines: list[Line2D | Patch] = [
        Line2D([], [], color=colour, linestyle=dash, linewidth=1.3, label=label)
        for colour, dash, label in BRANCHES.values()
    ]
    return [*lines, Patch(color=_WEIGHTS, label="share of the weights")]


def _caption(regime: str) -> str:
    return (
        f"Regime {regime}: share of intended updates that change the stored weight, against the stored |w| in powers "
        "of two (zero apart), for attention and MLP projections, summed over all looks, seeds, models and budgets. An "
        "update is intended where the part in question is not zero, and survives where what it would store differs "
        "from what a step of zero would store, both on the block scales of the whole update, with its random bits and "
        f"its carry. Bins with fewer than {FEWEST} intended updates are left out; grey bars are the share of weights "
        "that lie in the bin. Levels of ablations are in the CSV alone. Compare M+Adam's parts at large |w| with the "
        "updates of AdamW in its own panel: every optimizer runs at its own rates, and M+Adam's additive part at a "
        "rate that was chosen together with that of the other part."
    )


def _alt(regime: str, optimizers: list[str]) -> str:
    return (
        f"Regime {regime}: lines of the share of surviving updates against the magnitude of the weight, a panel for "
        f"each of {', '.join(optimizers) or 'no optimizer yet'}. The CSV beside the figure holds the numbers."
    )
