"""Figure 1 of the paper: sizes of the parts of an update beside what each format can resolve, and what survives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.style import SKY
from mpadam.analysis.tables import number_text
from mpadam.diagnostics.looks import looks
from mpadam.diagnostics.options import SurvivalGrid
from mpadam.diagnostics.survival_grid.measure import PARTS, Part, Survival

LOST, PARTLY, ZERO = "#bbbbbb", "#e2e2e2", "#555555"
SMALLEST_STEP = 1e-10  # of the axis
THICK, THIN = 2.8, 1.0
_GROUPS = (2, 6)  # rows of PARTS at which another group begins
_DRAWN = range(6)  # of PARTS, in the panels of sizes: what both branches do is the larger of the two


def figure1(options: SurvivalGrid, found: Sequence[Survival]) -> Picture:
    """A column a format: above, step sizes against |w| over what rounding loses; below, the share that survives."""
    with drawing():
        figure = Figure((2.5 * len(found) + 2.6, 7.0), layout="constrained")
        panels = figure.subplots(2, len(found), sharex=True, sharey="row", squeeze=False, height_ratios=(1.0, 1.05))
        for survival, (above, below) in zip(found, panels.T, strict=True):
            above.set_title(survival.fmt, fontsize="medium", loc="left")
            _sizes(above, survival)
            _shares(below, survival)
            below.set_xlabel("|w|")
        panels[0, 0].set_ylabel("|step| before rounding")
        _name_rows(panels[1, 0])
        figure.legend(
            handles=_legend(),
            loc="outside right upper",
            frameon=False,
            handlelength=3.2,
            title="part of an update",
            alignment="left",
        )
    return Picture(
        "figure1", "Which updates survive rounding (Figure 1 of the paper)", figure, _caption(options), _alt(found)
    )


def _sizes(axes: Axes, survival: Survival) -> None:
    x = survival.magnitudes.tolist()
    low, high = survival.least.tolist()
    axes.fill_between(x, SMALLEST_STEP, low, color=LOST, linewidth=0)
    axes.fill_between(x, low, high, color=PARTLY, linewidth=0)
    for index in _DRAWN:
        sizes, shares, look = survival.sizes[index], survival.shares[index], part_look(PARTS[index])
        if PARTS[index].branch == "multiplicative":  # of a weight that is stored as zero there is no step to draw
            sizes = sizes.where(survival.zeros == 0, float("nan"))
        axes.plot(x, sizes.tolist(), linewidth=THIN, **look)
        axes.plot(x, sizes.where(shares >= 0.5, float("nan")).tolist(), linewidth=THICK, **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(SMALLEST_STEP, 1.0)
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())


def _shares(axes: Axes, survival: Survival) -> None:
    """A strip a part, the darker the more weights it changes; a dark line where weights are stored as zero."""
    x = survival.magnitudes
    edges = [x[0].item(), *(x[:-1] * x[1:]).sqrt().tolist(), x[-1].item()]
    for row, (part, shares) in enumerate(zip(PARTS, survival.shares, strict=True)):
        colours = LinearSegmentedColormap.from_list("", ["white", part_look(part)["color"]])
        strip = shares[None].numpy()
        axes.pcolormesh(edges, [row + 0.1, row + 0.9], strip, cmap=colours, vmin=0, vmax=1, rasterized=True)
    zero = survival.zeros > 0.5
    if zero.any():
        axes.axvline(x[zero][-1].item(), color=ZERO, linewidth=1.0, linestyle=(0, (2, 2)))
        axes.text(x[zero][-1].item(), -0.12, "stored as 0 ", ha="right", va="bottom", fontsize=7, color=ZERO)
    for start in _GROUPS:
        axes.axhline(start, color="#999999", linewidth=0.8)
    axes.set_ylim(len(PARTS), -0.8)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)


def _name_rows(axes: Axes) -> None:
    axes.set_yticks([row + 0.5 for row in range(len(PARTS))], [part.label for part in PARTS], fontsize=8)


def part_look(part: Part) -> dict[str, Any]:
    """Colour and dash of the part's optimizer; the additive branch alone has its own."""
    if part.branch == "additive":
        return {"color": SKY, "linestyle": (0, (5, 1.5))}
    look = looks([part.optimizer])[part.optimizer]
    return {"color": look["color"], "linestyle": look["linestyle"]}


def _legend() -> list[Any]:
    names = ("AdamW", "additive branch", "normalized rho", "rho per tensor", "relative", "unnormalized")
    lines = [
        Line2D([], [], label=name, linewidth=1.6, **part_look(PARTS[index]))
        for index, name in zip(_DRAWN, names, strict=True)
    ]
    thick = [
        Line2D([], [], label="survives", color="#444444", linewidth=THICK),
        Line2D([], [], label="is lost", color="#444444", linewidth=THIN),
    ]
    areas = [
        Patch(color=LOST, label="lost to rounding"),
        Patch(color=PARTLY, label="depends on where\nw lies in its binade"),
    ]
    return [*lines, *thick, *areas]


def _caption(options: SurvivalGrid) -> str:
    return (
        "Above: size of the parts of one update against |w|, thick where it changes at least half of the stored "
        "weights, thin where rounding undoes it; grey is what the format cannot resolve. Below: share of weights that "
        "each part changes, from none (white) to all (full colour). AdamW at "
        f"{number_text(options.lr_adamw)}; M+Adam at the reference rates eta_a {number_text(options.lr)} and eta_m "
        f"{number_text(options.lr_mult)}, without decay; {options.per_bin} weights in each of {options.bins} bins; "
        "neighbours in a block, and the size of the whole tensor, are those of "
        f"N(0, {number_text(options.deviation)}). See that the default form of the multiplicative branch has the same "
        "size for every large |w| and is lost there like an additive step of that size (compare the additive twin), "
        "while a step proportional to |w| (relative, rho per tensor) runs along the edge of what the format resolves, "
        "on one side of it or on the other according to the rate. The unnormalized form depends on the gradient, here "
        f"{number_text(options.gradient)}."
    )


def _alt(found: Sequence[Survival]) -> str:
    return (
        f"For each of {', '.join(survival.fmt for survival in found)}: lines of step size against the magnitude of the "
        "weight over a grey area of steps that rounding loses, and strips that show at which magnitudes each step "
        "survives. The file survival.csv has the numbers."
    )
