"""Styles of lines that belong to optimizers without a regime, or to their branches: colour and marker of the one style
map, and a dash each.

In figures of the study the dash says the regime. The diagnostics have none, so here it keeps apart, in grey too, forms
that share a colour.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mpadam.analysis.style import SKY, Dash, optimizer_styles
from mpadam.exhibits.kit import panels as kit

_DASHES: dict[str, Dash] = {
    "madam": (0, (6, 2)),
    "m-plus-adam-relative": (0, (4, 1.5, 1, 1.5)),
    "m-plus-adam-rho-tensor": (0, (8, 2)),
    "m-plus-adam-unnormalized": (0, (1, 1.2)),
}
_BROAD = "additive-twin"  # often coincides with M+Adam, and is drawn broader and paler


def dash(name: str) -> Dash:
    return _DASHES.get(name, "-")


def scales(names: Sequence[str]) -> dict[str, Any]:
    return {
        **kit.styled(optimizer_styles(names)),
        "linestyle": {name: dash(name) for name in names},
        "linewidth": {name: 3.2 if name == _BROAD else 1.3 for name in names},
        "alpha": {name: 0.5 if name == _BROAD else 1.0 for name in names},
    }


def draw(axes: Axes, points: pd.DataFrame, names: Sequence[str], *, x: str, y: str, markers: bool = False) -> None:
    """A line for each method, through its points in the order of the rows.

    Not a layer of seaborn's: that looks up every combination of the values of its scales, 7^5 for seven methods.
    """
    styles = scales(names)
    wanted = ("color", "linestyle", "linewidth", "alpha", *(["marker"] if markers else []))
    for name in names:
        own = points[points["method"] == name]
        if not own.empty:
            axes.plot(own[x], own[y], markersize=4.5, **{key: styles[key][name] for key in wanted})


def entries(names: Sequence[str]) -> list[Line2D]:
    styles = scales(names)
    return [
        kit.line(
            style.label.replace(", ", ",\n"),
            color=style.colour,
            marker=style.marker,
            **{key: styles[key][name] for key in ("linestyle", "linewidth", "alpha")},
        )
        for name, style in optimizer_styles(names).items()
    ]


# --- branches of optimizers, next to each other -----------------------------------------------------------------------


#: `optimizer branch` -> keywords of a line: label, colour, marker, dash
BranchLines = dict[str, dict[str, Any]]


def branch_lines(pairs: Iterable[tuple[str, str]]) -> BranchLines:
    """Styles of these optimizer entries and branches, in the order to show them.

    An optimizer with one branch has its own style; of one with two, the multiplicative branch has it.
    """
    found = list(dict.fromkeys(pairs))
    lines = {}
    for entry, style in optimizer_styles(entry for entry, _ in found).items():
        branches = [branch for optimizer, branch in found if optimizer == entry]
        for branch in branches:
            alone = len(branches) == 1
            second = branch == "additive" and not alone
            lines[f"{entry} {branch}"] = {
                "label": style.label if alone else f"{style.label},\n{branch}",
                "color": SKY if second else style.colour,
                "marker": style.marker,
                "linestyle": (0, (1, 1.5)) if second else dash(entry),
            }
    return lines


def draw_branches(axes: Axes, rows: pd.DataFrame, lines: BranchLines, *, x: str, y: str, size: float) -> None:
    """A line for each optimizer and branch of the rows. size: of the markers, in points."""
    named = rows.assign(line=rows["optimizer"] + " " + rows["branch"])
    drawn = kit.plot(named, x=x, y=y, color="line", marker="line", linestyle="line")
    keys = ("color", "marker", "linestyle")
    scales: Any = {key: {name: line[key] for name, line in lines.items()} for key in keys}
    kit.draw(drawn.add(so.Path(pointsize=size, linewidth=1.3), legend=False).scale(**scales), axes)
