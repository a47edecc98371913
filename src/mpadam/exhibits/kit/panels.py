"""Panels, legends and marks that figures share. seaborn draws what is data; what it has no word for is here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mpadam.analysis.style import OptimizerStyle
from mpadam.exhibits.kit.pictures import TEXT, THEME, WIDTH

INK, MUTED = "#444444", "#555555"
DOTTED, DASHED = (0, (1, 1.5)), (0, (5, 2))


def page(height: float) -> Figure:
    """An empty figure of the common width; height in inches."""
    return Figure((WIDTH, height), layout="constrained")


def panels(count: int, *, columns: int, height: float, empty: str = "", **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most `columns` in a row, each row `height` inches high; one that says `empty`
    where there is none."""
    columns = min(columns, max(1, count))
    rows = max(1, -(-count // columns))
    figure = page(rows * height)
    grid = figure.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
    for spare in grid[max(1, count) :]:
        spare.remove()
    if not count and empty:
        say(grid[0], empty)
    return figure, grid[: max(1, count)]


def pairs(
    count: int, *, columns: int, heights: tuple[float, float], room: float = 0.0, empty: str = "", **shared: Any
) -> Any:
    """A figure with `count` pairs of a panel and one below it, at most `columns` next to each other; one panel that
    says `empty` where there is none.

    heights: of the two, in inches; room: above them, of the figure. Returns the figure and the pairs.
    """
    columns = min(columns, max(1, count))
    blocks = max(1, -(-count // columns))
    figure = page(blocks * sum(heights) + room)
    grid = figure.subplots(2 * blocks, columns, squeeze=False, height_ratios=heights * blocks, **shared)
    found = [pair for row in range(0, 2 * blocks, 2) for pair in zip(grid[row], grid[row + 1], strict=True)]
    for spare in (axes for pair in found[max(1, count) :] for axes in pair):
        spare.remove()
    if not count and empty:
        say(found[0][0], empty)
        found[0][1].remove()
    return figure, found[: max(1, count)]


def plot(data: Any, **variables: Any) -> so.Plot:
    """A seaborn plot in the common theme. Nothing is aggregated: layers get marks alone, no statistics."""
    return so.Plot(data, **variables).theme(THEME)


def draw(plot_: so.Plot, axes: Axes) -> None:
    """Draw the plot into a panel; labels of axes, and legends, are the panel's and the figure's own."""
    plot_.label(x="", y="").on(axes).plot()


def styled(styles: Mapping[str, OptimizerStyle], **scales: Any) -> dict[str, Any]:
    """Scales for `so.Plot.scale`: colour and marker by optimizer entry."""
    return {
        "color": {name: style.colour for name, style in styles.items()},
        "marker": {name: style.marker for name, style in styles.items()},
        **scales,
    }


def say(axes: Axes, text: str) -> None:
    """Words in place of data that is not there; no ticks then."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)


def crosses(axes: Axes, places: Sequence[float], colour: str) -> None:
    """A cross at the top of the panel for each place whose run diverged."""
    if places:
        axes.plot(places, [0.97] * len(places), transform=axes.get_xaxis_transform(), color=colour, **CROSS)


CROSS: dict[str, Any] = {"marker": "x", "linestyle": "none", "markersize": 6}
CIRCLE: dict[str, Any] = {"marker": "o", "fillstyle": "none", "markersize": 11, "linestyle": "none"}


def few_ticks(axes: Axes, *, most: int = 6) -> None:
    """Round numbers on the vertical axis, at least three of them."""
    axes.yaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))


def fixed_ticks(axes: Axes, places: Sequence[float], labels: Iterable[str], *, rotation: float = 0) -> None:
    """These ticks on the horizontal axis and no others; slanted labels end at their tick."""
    axes.xaxis.set_major_locator(FixedLocator(list(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    slanted: dict[str, Any] = {"rotation": rotation, "ha": "right", "rotation_mode": "anchor"} if rotation else {}
    axes.set_xticklabels(list(labels), **slanted)


def width(labels: Iterable[str]) -> float:
    """Inches that the longest of these labels of ticks takes; 0 without any."""
    font = FontProperties(family=THEME["font.sans-serif"], size=TEXT)
    return max((TextPath((0, 0), label, prop=font).get_extents().x1 / 72 for label in labels), default=0.0)


# --- legends ---------------------------------------------------------------------------------------------------------


def legend(figure: Figure, groups: Mapping[str, Sequence[Line2D | Patch]]) -> None:
    """One legend outside the panels, to the right: groups of entries below their headings, "" for none."""
    handles: list[Line2D | Patch] = []
    for heading, entries in groups.items():
        handles += [line(heading, linestyle="none"), *entries] if heading else entries
    made = figure.legend(handles=handles, loc="outside right upper", frameon=False, handlelength=3.0)
    for text in made.get_texts():
        if text.get_text() in groups:
            text.set_fontweight("bold")


def line(label: str, **keywords: Any) -> Line2D:
    """An entry of a legend, grey unless the keywords of the line say otherwise."""
    return Line2D([], [], label=label, **{"color": INK, **keywords})


def patch(label: str, **keywords: Any) -> Patch:
    return Patch(label=label, **keywords)


def optimizer_lines(styles: Mapping[str, OptimizerStyle], **keywords: Any) -> list[Line2D]:
    return [line(style.label, color=style.colour, marker=style.marker, **keywords) for style in styles.values()]


def diverged_entry(label: str = "a run diverged") -> list[Line2D]:
    return [line(label, marker="x", linestyle="none")]
