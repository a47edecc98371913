"""Looks of lines that belong to optimizers without a regime, or to their branches: colour and marker of the one style
map, and a dash each.

In figures of the study the dash says the regime. The diagnostics have none, so here it keeps apart, in grey too, forms
that share a colour.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
        **kit.looks(optimizer_styles(names)),
        "linestyle": {name: dash(name) for name in names},
        "linewidth": {name: 3.2 if name == _BROAD else 1.3 for name in names},
        "alpha": {name: 0.5 if name == _BROAD else 1.0 for name in names},
    }


def draw(axes: Axes, points: pd.DataFrame, names: Sequence[str], *, x: str, y: str, markers: bool = False) -> None:
    """A line for each method, through its points in the order of the rows.

    Not a layer of seaborn's: that looks up every combination of the values of its looks, 7^5 for seven methods.
    """
    looks = scales(names)
    wanted = ("color", "linestyle", "linewidth", "alpha", *(["marker"] if markers else []))
    for name in names:
        own = points[points["method"] == name]
        if not own.empty:
            axes.plot(own[x], own[y], markersize=4.5, **{look: looks[look][name] for look in wanted})


def entries(names: Sequence[str]) -> list[Line2D]:
    looks = scales(names)
    return [
        kit.line(
            style.label.replace(", ", ",\n"),
            color=style.colour,
            marker=style.marker,
            **{look: looks[look][name] for look in ("linestyle", "linewidth", "alpha")},
        )
        for name, style in optimizer_styles(names).items()
    ]


# --- branches of optimizers, next to each other -----------------------------------------------------------------------


@dataclass(frozen=True)
class BranchLine:
    label: str
    colour: str
    marker: str
    dash: Dash


def branch_lines(pairs: Iterable[tuple[str, str]]) -> dict[str, BranchLine]:
    """`optimizer branch` -> looks, of these optimizer entries and branches, in the order to show them.

    An optimizer with one branch has its own looks; of one with two, the multiplicative branch has them.
    """
    found = list(dict.fromkeys(pairs))
    styles = optimizer_styles(entry for entry, _ in found)
    lines = {}
    for entry, style in styles.items():
        branches = [branch for optimizer, branch in found if optimizer == entry]
        for branch in branches:
            alone = len(branches) == 1
            second = branch == "additive" and not alone
            lines[f"{entry} {branch}"] = BranchLine(
                style.label if alone else f"{style.label},\n{branch}",
                SKY if second else style.colour,
                style.marker,
                (0, (1, 1.5)) if second else dash(entry),
            )
    return lines


def branch_entries(lines: dict[str, BranchLine]) -> list[Line2D]:
    return [kit.line(line.label, color=line.colour, marker=line.marker, linestyle=line.dash) for line in lines.values()]


def draw_branches(axes: Axes, rows: pd.DataFrame, lines: dict[str, BranchLine], *, x: str, y: str, size: float) -> None:
    """A line for each optimizer and branch of the rows. size: of the markers, in points."""
    named = rows.assign(line=rows["optimizer"] + " " + rows["branch"])
    drawn = kit.plot(named, x=x, y=y, color="line", marker="line", linestyle="line")
    scales = {
        "color": {name: line.colour for name, line in lines.items()},
        "marker": {name: line.marker for name, line in lines.items()},
        "linestyle": {name: line.dash for name, line in lines.items()},
    }
    kit.draw(drawn.add(so.Path(pointsize=size, linewidth=1.3), legend=False).scale(**scales), axes)
