"""Lines of figures that set the branches of several optimizers next to each other: colour, marker and dash of each."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mpadam.analysis.style import SKY, Dash, optimizer_styles
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.lines import dash


@dataclass(frozen=True)
class BranchLine:
    """Looks of one branch of one optimizer."""

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
    """Entries of a legend."""
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
