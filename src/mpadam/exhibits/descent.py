"""Cosines between update and negative gradient along training, and how often the loss of the batch fell
(docs/algorithm.md, (43) and (44))."""

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes

from mpadam.analysis.entries import MAIN
from mpadam.analysis.probes import Probes
from mpadam.analysis.style import Dash, OptimizerStyle, optimizer_styles, regime_styles
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source

NAME = "descent"
TITLE = "Descent along training"
NEEDS = "probes"

COLUMNS = 4
HEIGHTS = (1.4, 0.8)  # inches: of a panel of cosines, and of the one of the loss below it
INTERVALS = 10  # of a run, within which probes are averaged
#: branch -> dash: z as log2(1 + u_m) has the same cosine
BRANCHES: dict[str, Dash] = {"additive": "-", "ln": (0, (2, 1.2))}


def descent_means(probes: Probes) -> pd.DataFrame:
    """regime, optimizer, quantity, branch, progress -> mean over the probes of an interval, and count.

    Quantities: `cosine` over all parameters, and `loss_fell`. progress: end of the interval as share of the run.
    """
    rows = probes.of("cosine", "loss_fell")
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


def make(source: Source) -> Picture:
    means = descent_means(source.probes)
    optimizers = optimizer_styles(means["optimizer"].tolist())
    regimes = list(regime_styles(means["regime"].tolist()))
    figure, pairs = kit.pairs(
        len(regimes), columns=COLUMNS, heights=HEIGHTS, room=0.4, empty="no probe yet", sharey="row"
    )
    for place, ((above, below), name) in enumerate(zip(pairs, regimes, strict=False)):
        inside = place % COLUMNS > 0
        own = means[means["regime"] == name]
        _lines(above, own[own["quantity"] == "cosine"], optimizers)
        _lines(below, own[own["quantity"] == "loss_fell"], optimizers)
        above.set(title=name, xticklabels=[], ylabel="" if inside else "cosine")
        lowest = place + COLUMNS >= len(regimes)
        below.set(xlabel="share of training" if lowest else "", ylabel="" if inside else "loss fell")
        for axes in (above, below):
            axes.tick_params(labelleft=not inside)
    branches = [
        kit.line(label, linestyle=BRANCHES[branch])
        for branch, label in (("additive", r"$\cos(-g,\ u_a)$"), ("ln", r"$\cos(-g_e,\ z)$"))
    ]
    kit.legend(figure, {"optimizer": kit.optimizer_lines(optimizers), "branch": branches})
    what = "Cosines between update and negative gradient over training, and the share of probes at which the loss fell"
    return Picture(NAME, TITLE, figure, _CAPTION, alternative(what, regimes, "The CSV file next to the figure"), means)


def _lines(axes: Axes, means: pd.DataFrame, optimizers: dict[str, OptimizerStyle]) -> None:
    drawn = (
        kit.plot(means, x="progress", y="mean", color="optimizer", marker="optimizer", linestyle="branch")
        .add(so.Path(pointsize=3, linewidth=1.2), legend=False)
        .scale(**kit.styled(optimizers, linestyle={**BRANCHES, "": "-"}))
    )
    kit.draw(drawn, axes)
    axes.set(xlim=(0, 1.05), ylim=(-0.08, 1.08), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])


_CAPTION = (
    'Along training, above: cosine between each branch and the step that "Theorem 4.1" of the paper assumes, -g for '
    "the additive branch and -g_e = -ln(2) w g for z = ln(1 + u_m) of the multiplicative one (the same for log2), over "
    "all parameters; the theorem's conditions can hold for some rate only at cosine 1. Below: share of probes at which "
    "the loss of the same batch was lower after the step. Points are means over runs and over the probes of a tenth of "
    "training. AdamW and M+Adam alone, where the study has them; every other run is in probes.csv."
)
