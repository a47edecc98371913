"""Fitting a matrix whose weights are stored in bf16 (the paper's Figure 3): sign errors, zero weights, small weights
and large weights, mean and range over seeds. Single branches take their best rate for each task, the others one
rate for all four. Look at which forms of M+Adam one rate serves on all four, and at the additive twin.
"""

from typing import Any

import numpy as np
import pandas as pd
import seaborn.objects as so

from mpadam.exhibits.kit import lines
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source

NAME = "figure3"
TITLE = "Fitting a matrix stored in bf16 (Figure 3 of the paper)"
NEEDS = "diagnostics/matrix-fitting"
PLACE = 130
CHECKED = {"diagnostics/matrix-fitting/curves.csv": ("error",)}

SINGLE = ("adamw", "madam")  # branches alone, with one rate
TOP = 3.0  # of the error axes; what is larger has blown up
MARKS = 8  # on a line


def make(source: Source) -> Picture:
    options = source.record(f"{NEEDS}/results.json")["options"]
    found = over_seeds(as_in_paper(source.numbers(f"{NEEDS}/curves.csv")), ["task", "method", "update"])
    methods, tasks = list(dict.fromkeys(found["method"])), list(dict.fromkeys(found["task"]))
    updates = sorted(set(found["update"]))
    figure, panels = kit.panels(len(tasks), columns=2, height=2.9, sharex=True, sharey=True)
    for number, (task, axes) in enumerate(zip(tasks, panels, strict=True)):
        own = found[found["task"] == task]
        scales = lines.scales(methods)
        drawn = (
            kit.plot(own, x="update", y="mean", color="method")
            .add(BAND, ymin="low", ymax="high", legend=False)
            .add(so.Dot(pointsize=4.5), data=_marked(own, methods, updates), marker="method", legend=False)
            .scale(color=scales["color"], marker=scales["marker"])
        )
        kit.draw(drawn, axes)
        lines.draw(axes, own, methods, x="update", y="mean")
        axes.set(title=f"({'abcd'[number]}) {task}", xlabel="updates" if number > 1 else "")
        axes.set(yscale="log", ylim=error_limits(found), ylabel="" if number % 2 else "relative error")
        axes.tick_params(labelleft=number % 2 == 0, labelbottom=number > 1)
    kit.legend(figure, {f"bf16 weights,\nn = {options['seeds']} seeds": lines.entries(methods)})
    alt = alternative("Relative error of seven methods against updates", tasks, "The table of the matrix fitting")
    return Picture(NAME, TITLE, figure, _caption(options), alt)


BAND = so.Band(alpha=0.15, edgewidth=0)  # least to largest of the seeds


def as_in_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows in which single branches take their best rates and the others one rate for all tasks."""
    return frame[(frame["rates"] == "best per task") == frame["method"].isin(SINGLE)]


def over_seeds(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Geometric mean, least and largest error over seeds; nothing where one of the errors is not finite."""
    logs = frame.assign(error=np.log(frame["error"].where(frame["error"] > 0)))
    grouped = logs.groupby(keys, sort=False)["error"]
    whole = grouped.count() == grouped.size()
    return np.exp(grouped.agg(mean="mean", low="min", high="max").where(whole)).reset_index()


def error_limits(found: pd.DataFrame) -> tuple[float, float]:
    return 0.7 * float(found["low"].min()), 1.2 * TOP


def _marked(own: pd.DataFrame, methods: list[str], updates: list[int]) -> pd.DataFrame:
    """Points with a marker: those of different methods at different updates, or those of equal lines would hide each
    other."""
    apart = max(1, len(updates) // MARKS)
    first = own["method"].map(methods.index) * apart // len(methods)
    return own[own["update"].map(updates.index) % apart == first]


def _caption(options: dict[str, Any]) -> str:
    return (
        f"Root mean square of (w - w*) / w* of a {options['size']} x {options['size']} matrix stored in bf16, against "
        f"updates: geometric mean over n = {options['seeds']} seeds, band from the least to the largest. AdamW "
        "(additive) and Madam (multiplicative) take the best rate of each task, the others one rate for all tasks, as "
        "in the paper; rates are chosen on other seeds. See whether one rate serves all four tasks: the forms whose "
        "relative step is the same for every |w| (relative, unnormalized) against those whose step does not grow with "
        "|w| (M+Adam's default form, and the additive twin, which has no multiplicative branch at all) and the one "
        "that is divided by the size of the whole tensor (rho per tensor). Sizes, targets and rates are this project's "
        "reading."
    )
