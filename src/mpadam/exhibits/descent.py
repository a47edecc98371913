"""The figure of descent along training: cosines of paper.md ("Theorem 4.1"), and whether the loss of the batch fell."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpadam.analysis.entries import MAIN
from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.probes import Looks
from mpadam.analysis.style import OptimizerStyle, optimizer_styles, regime_styles
from mpadam.probes.outputs import DESCENT

WIDTH, COLUMNS = 2.1, 5
HEIGHTS = (1.9, 1.2)  # of a panel of cosines, and of the one of the loss below it
INTERVALS = 10  # of a run, within which looks are averaged
#: branch -> dash: z as log2(1 + u_m) has the same cosine
BRANCHES: dict[str, Any] = {"additive": "-", "ln": (0, (2, 1.2))}


def descent_means(looks: Looks) -> pd.DataFrame:
    """regime, optimizer, quantity, branch, progress -> mean over the looks of an interval, and count.

    Quantities: `cosine` over all parameters, and `loss_fell`. progress: end of the interval as share of the run.
    """
    rows = looks.of("cosine", "loss_fell")
    rows = rows[rows["branch"].isin(BRANCHES) & (rows["role"] == "all") | (rows["quantity"] == "loss_fell")]
    entries = set(rows["optimizer"])
    if entries & set(MAIN):
        rows = rows[rows["optimizer"].isin(MAIN)]
    progress = (rows["step"] / rows["steps"] * INTERVALS).astype("float64").apply(_up) / INTERVALS
    keys = ["regime", "optimizer", "quantity", "branch", "progress"]
    rows = rows.assign(progress=progress, sum=rows["value"] * rows["count"])[rows["value"].notna()]
    summed = rows.groupby(keys)[["sum", "count"]].sum().reset_index()
    return summed.assign(mean=summed["sum"] / summed["count"]).drop(columns="sum")


def _up(x: float) -> int:
    """The end of an interval; what is an end is its own, whatever the last digit of the quotient."""
    return -int(-(x - 1e-9) // 1)


def descent_picture(looks: Looks) -> Picture:
    """For every regime a panel of cosines over training, and below it the share of looks at which the loss fell."""
    means = descent_means(looks)
    optimizers = optimizer_styles(means["optimizer"].tolist())
    regimes = regime_styles(means["regime"].tolist())
    columns = min(COLUMNS, max(1, len(regimes)))
    blocks = max(1, -(-len(regimes) // columns))
    with drawing():
        figure = Figure((columns * WIDTH + 2.3, blocks * sum(HEIGHTS) + 0.5), layout="constrained")
        panels = figure.subplots(2 * blocks, columns, squeeze=False, sharex=True, height_ratios=HEIGHTS * blocks)
        for axes in panels.ravel()[:: 1 if regimes else 2]:
            axes.set_visible(False)
        for index, (name, style) in enumerate(regimes.items()):
            above, below = panels[2 * (index // columns) : 2 * (index // columns) + 2, index % columns]
            above.set_title(style.label, fontsize="medium", loc="left")
            own = means[means["regime"] == name]
            _cosines(above, own[own["quantity"] == "cosine"], optimizers)
            _falls(below, own[own["quantity"] == "loss_fell"], optimizers)
            if index % columns == 0:
                above.set_ylabel("cosine")
                below.set_ylabel("loss fell")
            if index + columns >= len(regimes):
                below.set_xlabel("share of training")
                below.tick_params(labelbottom=True)
        figure.legend(handles=_legend(optimizers), loc="outside right upper", frameon=False, handlelength=2.8)
    return Picture(DESCENT, "Descent along training", figure, _CAPTION, _alt(list(regimes)), means)


def _cosines(axes: Axes, means: pd.DataFrame, optimizers: dict[str, OptimizerStyle]) -> None:
    axes.set_visible(True)
    for name, style in optimizers.items():
        for branch, dash in BRANCHES.items():
            own = means[(means["optimizer"] == name) & (means["branch"] == branch)]
            axes.plot(own["progress"].tolist(), own["mean"].tolist(), linestyle=dash, **_look(style))
    axes.set_xlim(0, 1.03)
    axes.set_ylim(-0.05, 1.05)


def _falls(axes: Axes, means: pd.DataFrame, optimizers: dict[str, OptimizerStyle]) -> None:
    axes.set_visible(True)
    for name, style in optimizers.items():
        own = means[means["optimizer"] == name]
        axes.plot(own["progress"].tolist(), own["mean"].tolist(), **_look(style))
    axes.set_ylim(-0.08, 1.08)


def _look(style: OptimizerStyle) -> dict[str, Any]:
    return {"color": style.colour, "marker": style.marker, "markersize": 3, "linewidth": 1.2}


def _legend(optimizers: dict[str, OptimizerStyle]) -> list[Line2D]:
    grey: dict[str, Any] = {"color": "#444444", "linewidth": 1.2}
    return [
        *(Line2D([], [], label=style.label, **_look(style)) for style in optimizers.values()),
        Line2D([], [], label=r"$\cos(-g,\ u_a)$", linestyle=BRANCHES["additive"], **grey),
        Line2D([], [], label=r"$\cos(-g_e,\ z)$", linestyle=BRANCHES["ln"], **grey),
    ]


_CAPTION = (
    'Along training, above: cosine between each branch and the step that "Theorem 4.1" of the paper assumes, -g for '
    "the additive branch and -g_e = -ln(2) w g for z = ln(1 + u_m) of the multiplicative one (the same for log2), over "
    "all parameters; the theorem's conditions can hold for some rate only at cosine 1. Below: share of looks at which "
    "the loss of the same batch was lower after the step. Points are means over runs and over the looks of a tenth of "
    "training. AdamW and M+Adam alone, where the study has them; every other run is in probes.csv."
)


def _alt(regimes: list[str]) -> str:
    return (
        "Lines of cosines between update and negative gradient over training, and of the share of looks at which the "
        f"batch's loss fell, for each of {', '.join(regimes) or 'no regime yet'}. The CSV beside the figure holds the "
        "numbers."
    )
