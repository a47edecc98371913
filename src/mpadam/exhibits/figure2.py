"""How M+Adam computes and stores one update (the paper's Figure 2), and what a grid makes of equal steps, of steps in
proportion to ``|w|``, and of the steps of the default form. The equations are those of `mpadam.optim.rules`, the
grid below them is e5m2's own.
"""

from typing import Any

import torch
from matplotlib.axes import Axes

from mpadam.analysis.style import BLUE, VERMILLION
from mpadam.exhibits.kit.diagram import EDGE, FILLS, Point, arrow, box, canvas, note
from mpadam.exhibits.kit.pictures import Picture
from mpadam.exhibits.source import Source
from mpadam.numerics.grids import E5M2, decode_table, round_to_grid

NAME = "figure2"
TITLE = "Overview of M+Adam (Figure 2 of the paper)"
NEEDS = ""
PLACE = 120

WIDTH, HEIGHT = 10.4, 7.5
TOP, MIDDLE, LOW, RETURN = 6.45, 5.4, 4.35, 7.25  # of the flow, and of the way back
ADDITIVE, MULTIPLICATIVE = "#d9ecf7", "#fbdcc8"
LARGEST = 4.5  # of the number line
STEP, SHARE, CLIP = 0.12, 0.2, 0.75  # an additive step; a multiplicative one relative to |w|, and its bound
WEIGHTS = (0.0, 0.4375, 3.5)


def make(_: Source) -> Picture:
    figure, axes = canvas(WIDTH, HEIGHT)
    _flow(axes)
    _number_lines(axes)
    return Picture(NAME, TITLE, figure, _CAPTION, _ALT)


#: centre, text, and further keywords of `box`
_BOXES: tuple[tuple[Point, str, dict[str, Any]], ...] = (
    ((0.95, MIDDLE), "stored weight\nbf16, FP8 or NVFP4", {"width": 1.5, "height": 0.6, "fill": FILLS[8]}),
    ((2.95, TOP), r"$g = \nabla_w L$", {"width": 1.5, "fill": ADDITIVE}),
    ((2.95, LOW), r"$g_e = \ln 2 \cdot w \cdot g$", {"width": 1.5, "fill": MULTIPLICATIVE}),
    ((5.15, TOP), r"$u_a = -\eta_a\ \hat m\ /\ (\sqrt{\hat v} + \epsilon)$", {"width": 2.1, "fill": ADDITIVE}),
    ((5.15, LOW), r"$r = -\eta_m\ g_e\ /\ (\sqrt{\hat v_e} + \epsilon)$", {"width": 2.1, "fill": MULTIPLICATIVE}),
    ((7.35, LOW), r"$u_m = \mathrm{clip}(r / \rho)$", {"width": 1.6, "fill": MULTIPLICATIVE}),
    ((7.35, MIDDLE), r"$w + w\,u_m + u_a - \mathrm{decay}$", {"width": 2.0, "height": 0.55, "round_": True}),
    (
        (9.4, MIDDLE),
        "write back\nnearest, stochastic\nor Kahan",
        {"width": 1.55, "height": 0.75, "round_": True, "size": 8.5},
    ),
)
_NOTES: tuple[tuple[Point, str, dict[str, Any]], ...] = (
    ((2.33, MIDDLE), "decode,\nforward,\nbackward", {}),
    ((5.15, TOP + 0.42), "additive branch, states m and v", {"bold": True}),
    ((5.15, LOW - 0.42), r"multiplicative branch, state $\mathbf{v_e}$", {"bold": True}),
    ((7.35, LOW - 0.52), "$\\rho$: |w|, RMS of the\ntensor, or none", {}),
    ((6.28, MIDDLE), "fp32", {"ha": "right"}),
)
_ARROWS: tuple[tuple[Point, Point, dict[str, Any]], ...] = (
    ((1.7, MIDDLE + 0.1), (2.2, TOP - 0.12), {}),
    ((1.7, MIDDLE - 0.1), (2.2, LOW + 0.12), {}),
    ((2.95, TOP - 0.25), (2.95, LOW + 0.25), {"dash": ":"}),
    ((3.7, TOP), (4.1, TOP), {}),
    ((3.7, LOW), (4.1, LOW), {}),
    ((6.2, LOW), (6.55, LOW), {}),
    ((6.2, TOP), (7.0, MIDDLE + 0.275), {"bend": "angle,angleA=0,angleB=90,rad=4"}),
    ((7.35, LOW + 0.25), (7.35, MIDDLE - 0.275), {}),
    ((8.35, MIDDLE), (8.62, MIDDLE), {}),
    ((0.95, RETURN), (0.95, MIDDLE + 0.3), {}),
)


def _flow(axes: Axes) -> None:
    for centre, text, about in _BOXES:
        box(axes, centre, text, **about)
    for at, text, about in _NOTES:
        note(axes, at, text, **about)
    for start, end, about in _ARROWS:
        arrow(axes, start, end, **about)
    axes.plot([9.4, 9.4, 0.95], [MIDDLE + 0.375, RETURN, RETURN], color=EDGE, linewidth=1.0)


def _number_lines(axes: Axes) -> None:
    """What a grid makes of equal steps and of steps in proportion to |w|, at zero, at a small and at a large weight."""
    left, scale = 2.75, (WIDTH - 3.3) / LARGEST
    grid = [value for value in decode_table("e5m2").tolist() if 0 <= value <= LARGEST]
    note(axes, (0.25, 3.4), "On the grid", ha="left", bold=True)
    note(axes, (0.25, 3.14), "(e5m2; steps are schematic)", ha="left")
    rows = (
        (2.65, BLUE, "additive step,\nthe same everywhere", lambda w: STEP),
        (1.75, VERMILLION, "multiplicative step\nwithout division by |w|", lambda w: SHARE * w),
        (0.85, VERMILLION, "multiplicative step\nof the default form", lambda w: min(CLIP * w, STEP)),
    )
    for y, colour, label, size in rows:
        note(axes, (0.25, y), label, ha="left")
        axes.plot([left, left + LARGEST * scale], [y, y], color=EDGE, linewidth=0.8)
        axes.vlines([left + value * scale for value in grid], y - 0.07, y + 0.07, color=EDGE, linewidth=0.8)
        for w in WEIGHTS:
            moved = float(round_to_grid(torch.tensor(w + size(w)), E5M2)) != w
            _step(axes, (left + w * scale, y), size(w) * scale, moved, colour)
    for value in (0, 1, 2, 3, 4):
        note(axes, (left + value * scale, 0.5), f"{value}")
    note(axes, (left + LARGEST * scale / 2, 0.24), "|w|")


def _step(axes: Axes, at: tuple[float, float], length: float, moved: bool, colour: str) -> None:
    x, y = at
    axes.plot(x, y, marker="o", color=colour, markersize=5, zorder=3)
    if length > 0:
        arrow(axes, (x, y + 0.2), (x + length, y + 0.2), colour=colour, linewidth=1.8)
    word = "moves" if moved else ("no step" if length == 0 else "is lost")
    note(axes, (x + length / 2, y + 0.38), word, bold=moved)


_CAPTION = (
    "One update of one weight. The additive branch is Adam's; the multiplicative branch works on the gradient with "
    "respect to the exponent and has one state of its own. Both are computed in float32, added to the weight that was "
    "stored, and rounded once, which is where steps get lost: below, on the grid of e5m2, a step of less than half a "
    "spacing changes nothing. A step in proportion to |w| survives at large |w| too. In the default form, where rho is "
    "|w| and g_e is divided by the root of its second moment, w u_m is bounded by 0.75 |w| and otherwise has one size "
    "for all |w|: it is lost at large |w| like an additive step. Figure 1 has the sizes at the reference rates."
)
_ALT = (
    "Flow diagram: stored weight, decoded; gradient g and exponent gradient g_e = ln 2 w g; additive branch with "
    "states m and v, multiplicative branch with state v_e, division by rho and clip; sum in float32; write back by "
    "rounding; stored weight. Below, three number lines: an additive step moves zero and a small weight and is lost at "
    "a large one; a multiplicative step in proportion to |w| moves a small and a large weight and has no length at "
    "zero; that of the default form has no length at zero, moves a small weight and is lost at a large one."
)
