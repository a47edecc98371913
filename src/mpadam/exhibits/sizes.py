"""How large steps are along training: above against ``|w|``, below next to the spacing of the format at the weight.
Look at whether the multiplicative step grows with ``|w|``, and at how far below half a spacing the lost steps lie.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mpadam.analysis.probes import Probes
from mpadam.analysis.style import regime_styles
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.lines import BranchLines, branch_lines, draw_branches
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source

NAME = "sizes"
TITLE = "How large steps are along training"
NEEDS = "probes"
PLACE = 112
OF_LAYERS = True

COLUMNS, HEIGHTS = 3, (2.3, 2.0)
FEWEST = 1000  # weights of a bin that is drawn
ZERO = "-inf"
_KEYS = ["regime", "optimizer", "branch"]


def sizes(probes: Probes) -> pd.DataFrame:
    """regime, optimizer, branch, quantity, exponent -> value, count: over all probes of all seeds, and all projections.

    step_size: mean |step| of weights of 2**exponent <= |w| < 2**(exponent + 1).  octave: share of the steps with
    2**exponent <= |step| / spacing < 2**(exponent + 1).
    """
    rows = probes.of("step_size", "octave")
    rows = rows[rows["bin"] != ZERO]
    rows = rows.assign(exponent=pd.to_numeric(rows["bin"]), sum=rows["value"] * rows["count"])
    keys = [*_KEYS, "quantity", "exponent"]
    summed = rows.groupby(keys)[["sum", "count"]].sum().reset_index()
    whole = summed.groupby([*_KEYS, "quantity"])["count"].transform("sum")
    mean = summed["sum"] / summed["count"]
    value = mean.where(summed["quantity"] == "step_size", summed["count"] / whole)
    return summed.assign(value=value).drop(columns="sum")


def make(source: Source) -> Picture:
    found = sizes(source.probes)
    shown = found[(found["branch"] != "both") & ((found["quantity"] == "octave") | (found["count"] >= FEWEST))]
    lines = branch_lines(zip(shown["optimizer"], shown["branch"], strict=True))
    regimes = list(regime_styles(shown["regime"].tolist()))
    figure, pairs = kit.pairs(
        len(regimes), columns=COLUMNS, heights=HEIGHTS, room=0.4, empty="no probe of layers yet", sharey="row"
    )
    for place, ((above, below), name) in enumerate(zip(pairs, regimes, strict=False)):
        own, inside = shown[shown["regime"] == name], place % COLUMNS > 0
        _lines(above, own[own["quantity"] == "step_size"], lines)
        above.set(title=name, xlabel="|w|", ylabel="" if inside else "mean |step|", yscale="log")
        _lines(below, own[own["quantity"] == "octave"], lines)
        below.axvline(-1, color=kit.MUTED, linewidth=1.0, linestyle=kit.DASHED)
        below.set(xlabel="|step| / spacing", ylabel="" if inside else "share of steps")
        for axes in (above, below):
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.xaxis.set_major_formatter(lambda x, _: f"$2^{{{x:.0f}}}$")
            axes.tick_params(labelleft=not inside)
    half = kit.line("half a spacing", color=kit.MUTED, linestyle=kit.DASHED)
    kit.legend(figure, {"": [*(kit.line(**style) for style in lines.values()), half]})
    alt = alternative("Sizes of steps against |w|, and over spacing", regimes, "The CSV file next to the figure")
    return Picture(NAME, TITLE, figure, _CAPTION, alt, found)


def _lines(axes: Axes, rows: pd.DataFrame, lines: BranchLines) -> None:
    """In the middle of each octave."""
    draw_branches(axes, rows.assign(x=rows["exponent"] + 0.5), lines, x="x", y="value", size=3)


_CAPTION = (
    "Sizes of the steps of each branch before rounding, without decay, over all probes and seeds, for attention and "
    f"MLP projections. Above: mean against the stored |w| in powers of two, for bins with at least {FEWEST} weights. "
    "Below: share of the steps by their size over the spacing of the stored format, the distance from the weight to "
    "its neighbour on the side to which the step points; the outermost points hold what lies beyond. Rounding to "
    "nearest undoes a step that is shorter than about half a spacing, left of the dashed line. Weights that are zero, "
    "and those at the end of their block's range whose step points outwards, have no spacing and are left out below. "
    "The upper panels compare different weights, not one weight at different sizes: those with large gradients have "
    "moved furthest, so a mean step can be larger at large |w| although the rule does not make it so. Figure 1, "
    "without training, shows the rule alone."
)
