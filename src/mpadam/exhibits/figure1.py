"""Which updates survive rounding to nearest, against ``|w|``, on the real grids of bf16, FP8 and NVFP4 (the paper's
Figure 1), at the reference rates. Above, step sizes over what the format cannot resolve; below, the share of
weights that each part of an update changes. Look at where the multiplicative branch in its default form is lost,
and compare it with the additive twin.
"""

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from mpadam.analysis.style import OPTIMIZERS, SKY, Dash
from mpadam.analysis.texts import number_text
from mpadam.exhibits.kit import lines
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source

NAME = "figure1"
TITLE = "Which updates survive rounding (Figure 1 of the paper)"
NEEDS = "diagnostics/survival-grid"
PLACE = 110
CHECKED = {"diagnostics/survival-grid/survival.csv": ("share_changed",)}

HEIGHTS = (2.7, 2.9)  # inches: sizes, shares
LOST, PARTLY, ZERO = "#bbbbbb", "#e2e2e2", "#555555"
SMALLEST_STEP = 1e-10  # of the axis
THICK, THIN = 2.8, 1.0
#: rows of the lower panels: additive steps, the multiplicative branch alone in its forms, both branches together
PARTS = {
    ("adamw", "both"): "AdamW",
    ("m-plus-adam", "additive"): "additive branch",
    ("m-plus-adam", "multiplicative"): "default",
    ("m-plus-adam-rho-tensor", "multiplicative"): "rho per tensor",
    ("m-plus-adam-relative", "multiplicative"): "relative",
    ("m-plus-adam-unnormalized", "multiplicative"): "unnormalized",
    ("m-plus-adam", "both"): "M+Adam",
    ("m-plus-adam-rho-tensor", "both"): "rho per tensor",
    ("m-plus-adam-relative", "both"): "relative",
    ("m-plus-adam-unnormalized", "both"): "unnormalized",
    ("additive-twin", "both"): "Additive twin",
}
_GROUPS = (2, 6)  # rows at which the multiplicative branch, and both branches, begin
_NAMES = [f"{optimizer} {part}" for optimizer, part in PARTS]
_SIZED = _NAMES[:6]  # in the panels of sizes: what both branches do is the larger of the two


def make(source: Source) -> Picture:
    options = source.record(f"{NEEDS}/results.json")["options"]
    found = source.numbers(f"{NEEDS}/survival.csv")
    found = found.assign(name=found["optimizer"] + " " + found["part"])
    formats = list(dict.fromkeys(found["format"]))
    figure = kit.page(sum(HEIGHTS))
    grid = figure.subplots(2, len(formats), sharey="row", squeeze=False, height_ratios=HEIGHTS)
    for (above, below), fmt in zip(grid.T, formats, strict=True):
        own = found[found["format"] == fmt]
        _sizes(above, own)
        _shares(below, own)
        above.set(title=fmt, ylabel="")
        below.set(xlabel="|w|", ylabel="")
        for axes in (above, below):
            axes.tick_params(labelleft=fmt == formats[0])
    grid[0, 0].set_ylabel("|step| before rounding")
    grid[1, 0].set_yticks([row + 0.5 for row in range(len(PARTS))], list(PARTS.values()))
    kit.legend(figure, _legend())
    alt = alternative("Step sizes over what rounding loses, and shares that survive", formats, "The file survival.csv")
    return Picture(NAME, TITLE, figure, _caption(options), alt)


def _sizes(axes: Axes, own: pd.DataFrame) -> None:
    """Thin where a step is lost, thick where it changes at least half of the weights."""
    sizes = own[own["name"].isin(_SIZED)]
    lost = sizes["part"].eq("multiplicative") & sizes["share_stored_as_zero"].gt(0)
    sizes = sizes.assign(size=sizes["mean_step"].where(~lost))  # of a weight that is stored as zero there is no step
    sizes = sizes.assign(survives=sizes["size"].where(sizes["share_changed"] >= 0.5), floor=SMALLEST_STEP)
    areas = own[own["name"] == _SIZED[0]].assign(floor=SMALLEST_STEP)
    drawn = kit.plot(sizes, x="magnitude", y="size", color="name", linestyle="name")
    for low, high, colour in (("floor", "least_step_min", LOST), ("least_step_min", "least_step_max", PARTLY)):
        band = so.Band(color=colour, alpha=1, edgewidth=0)
        area = {"color": None, "linestyle": None}
        drawn = drawn.add(band, data=areas, ymin=low, ymax=high, legend=False, **area)
    drawn = drawn.add(so.Path(linewidth=THIN), legend=False).add(so.Path(linewidth=THICK), y="survives", legend=False)
    kit.draw(drawn.scale(color=_colours(), linestyle={name: _dash(name) for name in _SIZED}), axes)
    axes.set(xscale="log", yscale="log", ylim=(SMALLEST_STEP, 1.0))
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    _magnitude_axis(axes, own, labelled=False)


def _shares(axes: Axes, own: pd.DataFrame) -> None:
    """A strip per part, the darker the more weights it changes; a dashed line where weights are stored as zero."""
    x = np.sort(own["magnitude"].unique())
    edges = [x[0], *np.sqrt(x[:-1] * x[1:]), x[-1]]
    for row, name in enumerate(_NAMES):
        strip = own[own["name"] == name].sort_values("magnitude")["share_changed"].to_numpy()[None]
        shades = sns.blend_palette(["white", _colours()[name]], as_cmap=True)
        axes.pcolormesh(edges, [row + 0.1, row + 0.9], strip, cmap=shades, vmin=0, vmax=1, rasterized=True)
    zero = own.loc[own["share_stored_as_zero"] > 0.5, "magnitude"]
    if len(zero):
        axes.axvline(zero.max(), color=ZERO, linewidth=1.0, linestyle=(0, (2, 2)))
        axes.text(zero.max(), -0.12, "← stored\n   as 0", ha="left", va="bottom", color=ZERO)
    for start in _GROUPS:
        axes.axhline(start, color="#999999", linewidth=0.8)
    axes.set(xscale="log", ylim=(len(PARTS), -1.7))
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    _magnitude_axis(axes, own, labelled=True)


def _magnitude_axis(axes: Axes, own: pd.DataFrame, *, labelled: bool) -> None:
    axes.set_xlim(own["magnitude"].min(), own["magnitude"].max())
    axes.xaxis.set_major_locator(FixedLocator([1e-5, 1e-2]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelbottom=labelled)


def _colours() -> dict[str, str]:
    """Of the part's optimizer; the additive branch alone has its own."""
    return {
        name: SKY if part == "additive" else OPTIMIZERS[optimizer].colour
        for name, (optimizer, part) in zip(_NAMES, PARTS, strict=True)
    }


def _dash(name: str) -> Dash:
    optimizer, _, part = name.partition(" ")
    return (0, (5, 1.5)) if part == "additive" else lines.dash(optimizer)


def _legend() -> dict[str, Any]:
    labels = ("AdamW", "M+Adam, additive", "M+Adam, default", "rho per tensor", "relative", "unnormalized")
    return {
        "additive steps": [_entry(name, label) for name, label in zip(_SIZED[:2], labels, strict=False)],
        "multiplicative branch": [_entry(name, label) for name, label in zip(_SIZED[2:], labels[2:], strict=True)],
        "rounding": [
            kit.line("survives", linewidth=THICK),
            kit.line("is lost", linewidth=THIN),
            kit.patch("lost to rounding", color=LOST),
            kit.patch("depends on where\nw lies in its binade", color=PARTLY),
        ],
    }


def _entry(name: str, label: str) -> Any:
    return kit.line(label, color=_colours()[name], linestyle=_dash(name), linewidth=1.6)


def _caption(options: dict[str, Any]) -> str:
    rates = {name: number_text(options[name]) for name in ("lr", "lr_mult", "lr_adamw", "gradient", "deviation")}
    return (
        "Above: size of the parts of one update against |w|, thick where it changes at least half of the stored "
        "weights, thin where rounding undoes it; grey is what the format cannot resolve. Below: share of weights that "
        "each part changes, from none (white) to all (full colour): additive steps, then the forms of the "
        f"multiplicative branch alone, then both branches together. AdamW at {rates['lr_adamw']}; M+Adam at the "
        f"reference rates eta_a {rates['lr']} and eta_m {rates['lr_mult']}, without decay; {options['per_bin']} "
        f"weights in each of {options['bins']} bins; neighbours in a block, and the size of the whole tensor, are "
        f"those of N(0, {rates['deviation']}). See that the default form of the multiplicative branch has the same "
        "size for every large |w| and is lost there like an additive step of that size (compare the additive twin), "
        "while a step proportional to |w| (relative, rho per tensor) runs along the edge of what the format resolves, "
        "on one side of it or on the other according to the rate. The unnormalized form depends on the gradient, here "
        f"{rates['gradient']}."
    )
