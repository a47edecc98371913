"""Boxes, circles and arrows: what Figures 2 and 7 to 9 are drawn with. Coordinates are in
units of about an inch.

A box is filled by precision, the darker the fewer bits, and says its format in words: colour repeats what is written.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from mpadam.exhibits.kit.pictures import TEXT, WIDTH

#: fill by bits of the format
FILLS = {32: "#ffffff", 16: "#d9ecf7", 8: "#f8dfa8", 4: "#e9bcd4"}
_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "uint8": 8, "e4m3": 8, "e5m2": 8}
EDGE, INK, MUTED = "#444444", "#000000", "#555555"

CHARACTER, LINE = 0.008, 0.0185  # inches a character, and a line, and point of text size, margins included

Point = tuple[float, float]


def bits_of(fmt: str) -> int:
    """Bits of a value of a format, block scales aside: 32, 16, 8 or 4."""
    if fmt.startswith("fp8"):
        return 8
    return 4 if fmt.startswith("nvfp4") else _BITS[fmt]


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty page of the common width, (0, 0) at the lower left; it is `width` x `height` in the diagram's units."""
    figure = Figure((WIDTH, height * WIDTH / width))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    return figure, axes


def box(
    axes: Axes,
    centre: Point,
    text: str,
    *,
    width: float,
    height: float = 0.5,
    fill: str = "#ffffff",
    size: float = TEXT,
    round_: bool = False,
) -> None:
    """A box with text; `round_` for operations, corners for what is stored or passed on.

    size: of the text in points, smaller where a line would not fit.
    """
    lines = text.splitlines()
    inches = WIDTH / axes.get_xlim()[1]  # of a unit
    if "$" not in text:  # of an equation the length says little
        size = min(size, inches * width / (CHARACTER * max(map(len, lines))), inches * height / (LINE * len(lines)))
    x, y = centre[0] - width / 2, centre[1] - height / 2
    corner = min(width, height) / 2.2 if round_ else 0.04
    style = f"round,pad=0,rounding_size={corner}"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=fill, edgecolor=EDGE, linewidth=0.9))
    axes.text(*centre, text, ha="center", va="center", fontsize=size, color=INK, linespacing=1.25)


def arrow(
    axes: Axes,
    start: Point,
    end: Point,
    *,
    bend: str | None = None,
    dash: str = "-",
    colour: str = EDGE,
    linewidth: float = 1.0,
) -> None:
    """An arrow; `bend` is matplotlib's connection style where it is not straight."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            shrinkA=0,
            shrinkB=0,
            linewidth=linewidth,
            linestyle=dash,
            color=colour,
            connectionstyle=bend or "arc3,rad=0",
        )
    )


def note(axes: Axes, at: Point, text: str, *, ha: str = "center", bold: bool = False) -> None:
    weight = "bold" if bold else "normal"
    axes.text(*at, text, ha=ha, va="center", fontsize=TEXT, color=INK if bold else MUTED, fontweight=weight)


def precision_key(axes: Axes, at: Point, used: set[int]) -> None:
    """What the fills mean, a square each, from `at` to the right."""
    x, y = at
    for bits in sorted(used, reverse=True):
        axes.add_patch(FancyBboxPatch((x, y - 0.07), 0.22, 0.14, boxstyle="square,pad=0", facecolor=FILLS[bits],
                                      edgecolor=EDGE, linewidth=0.8))  # fmt: skip
        axes.text(x + 0.3, y, f"{bits} bits", va="center", fontsize=TEXT, color=MUTED)
        x += 0.95
