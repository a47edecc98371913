"""The rates behind Figure 3 (the paper's Figure 5): final error against each learning rate, chosen values circled.
Look at how far the valleys of the four tasks overlap.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from mpadam.exhibits.figure3 import BAND, SINGLE, TOP, error_limits, over_seeds
from mpadam.exhibits.kit import lines
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source

NAME = "figure5"
TITLE = "Rates of the matrix fitting (Figure 5 of the paper)"
NEEDS = "diagnostics/matrix-fitting"
PLACE = 140
CHECKED = {"diagnostics/matrix-fitting/sweeps.csv": ("error",)}

HEIGHT = 7.2
#: rate along the axis, its label, and whether the row is of single branches, which have that rate alone
_ROWS = (
    ("lr", "only rate", True),
    ("lr", r"$\eta_a$, at the shared $\eta_m$", False),
    ("lr_mult", r"$\eta_m$, at the shared $\eta_a$", False),
)


def make(source: Source) -> Picture:
    kept = source.record(f"{NEEDS}/results.json")
    errors = over_seeds(
        source.numbers(f"{NEEDS}/sweeps.csv").fillna({"lr_mult": 0.0}), ["task", "method", "lr", "lr_mult"]
    )
    chosen = _chosen(kept["choices"])
    tasks = list(dict.fromkeys(errors["task"]))
    methods = list(dict.fromkeys(errors["method"]))
    figure = kit.page(HEIGHT)
    grid = figure.subplots(len(_ROWS), len(tasks), sharex="row", sharey=True)
    for row, (rate, label, single) in zip(grid, _ROWS, strict=True):
        for task, axes in zip(tasks, row, strict=True):
            found = errors[(errors["task"] == task) & (errors["method"].isin(SINGLE) == single)]
            _draw(axes, _along(found, chosen, rate), rate, methods)
            axes.set(xscale="log", yscale="log", ylim=error_limits(errors), xlabel=label, ylabel="")
            axes.tick_params(labelleft=axes is row[0])
        row[0].set_ylabel("final relative error")
    for letter, task, axes in zip("abcd", tasks, grid[0], strict=True):
        axes.set_title(f"({letter}) {task}")
    beyond = kit.diverged_entry(f"error above {TOP:g},\nor infinite") if (~(errors["mean"] <= TOP)).any() else []
    marks = [kit.line("chosen rate", **kit.CIRCLE), *beyond]
    heading = f"bf16 weights,\nn = {kept['options']['seeds']} seeds"
    kit.legend(figure, {heading: [*lines.entries(methods), *marks]})
    alt = alternative("Final error of seven methods against their rates", tasks, "The table of the matrix fitting")
    return Picture(NAME, TITLE, figure, _caption(kept["options"]), alt)


def _chosen(choices: list[dict[str, Any]]) -> pd.DataFrame:
    """task, method -> the rates chosen as in the paper."""
    rows = [
        (task, choice["method"], found["lr"], found.get("lr_mult", 0.0))
        for choice in choices
        if (choice["rates"] == "best per task") == (choice["method"] in SINGLE)
        for task, found in choice["tasks"].items()
    ]
    return pd.DataFrame(rows, columns=["task", "method", "chosen_lr", "chosen_lr_mult"])


def _along(found: pd.DataFrame, chosen: pd.DataFrame, rate: str) -> pd.DataFrame:
    """The points along one rate, the other as chosen. shown: the mean, where it is not above the cut."""
    merged = found.merge(chosen, on=["task", "method"])
    other = "lr_mult" if rate == "lr" else "lr"
    own = merged[merged[other] == merged[f"chosen_{other}"]]
    return own.assign(shown=own["mean"].where(own["mean"] <= TOP), high=own["high"].clip(upper=TOP))


def _draw(axes: Axes, points: pd.DataFrame, rate: str, methods: list[str]) -> None:
    drawn = kit.plot(points, x=rate, y="shown", color="method").add(BAND, ymin="low", ymax="high", legend=False)
    scales = lines.scales(methods)
    kit.draw(drawn.scale(color=scales["color"]), axes)
    lines.draw(axes, points, methods, x=rate, y="shown", markers=True)
    for method, own in points.groupby("method"):
        colour = scales["color"][method]
        beyond = own[own["shown"].isna()]
        axes.plot(beyond[rate], [TOP] * len(beyond), color=colour, **{**kit.CROSS, "markersize": 5})
        circled = own[own[rate] == own[f"chosen_{rate}"]]
        axes.plot(circled[rate], circled["shown"], color=colour, **kit.CIRCLE)


def _caption(options: dict[str, Any]) -> str:
    return (
        f"Relative error after the last tenth of {options['steps']} updates against the learning rate: geometric mean "
        f"over n = {options['seeds']} seeds, band from the least to the largest. Top: AdamW and Madam, whose chosen "
        "rate (circled) may differ from task to task. Middle and bottom: methods with two rates, each along one of "
        "them while the other stays at the value shared by all tasks. See how far the valleys of the four tasks "
        "overlap: only then can one rate serve them all."
    )
