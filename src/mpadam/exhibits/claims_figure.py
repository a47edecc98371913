"""Gains in perplexity, in percent with their intervals, a panel for each claim and a line for each cell: thick for the
cell alone, thin for all cells of the claim together. Look whether an interval lies on one side of the dashed line,
the least difference that matters.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpadam.analysis.cells import cell_of
from mpadam.analysis.statistics import gain
from mpadam.analysis.style import BLACK, GREY, optimizer_styles
from mpadam.claims.data import UNITS
from mpadam.claims.outcome import FAILS, HOLDS, OPEN, costs, how, outcomes
from mpadam.claims.verdicts import CONTRADICTED, SUPPORTED
from mpadam.exhibits.claims import tidy
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import WIDTH, Picture, alternative, counts_text
from mpadam.exhibits.source import Source

NAME = "claims"
TITLE = "Claims: differences and their intervals"
NEEDS = "claims.json"
PLACE = 40
IN_ALL = True

#: inches; HEADING: title and tick labels of a panel, TICKS: of these the part below it; MARGIN: left of the labels
LINE, HEADING, TICKS = 0.18, 0.62, 0.3
MARGIN, RIGHT, TOP, BOTTOM = 0.2, 1.4, 0.7, 0.4
_SIGNS = {HOLDS: "+ ", FAILS: "× ", OPEN: "? "}
_NUMBERS = ("mean", "low", "high", "family_low", "family_high")
_COLUMNS = ["claim", "contrast", "where", "n", "mean", "low", "high", "family_low", "family_high", "verdict"]
_TOLD = ("kind", "diverged", "optimizer")

Record = dict[str, Any]


def make(source: Source) -> Picture:
    claims = source.record(NEEDS)
    units = (UNITS["perplexity"], UNITS["trend"])
    shown = [claim for claim in claims["claims"] if claim["unit"] in units and claim["cells"]]
    known = costs(claims)
    kinds = {claim["id"]: [outcome.kind for outcome in outcomes(claim, known)] for claim in shown}
    frame = cells_shown(shown)
    figure, axes = _places([len(claim["cells"]) for claim in shown] or [3], kit.width(frame["label"]))
    for ax, claim in zip(axes, shown, strict=False):
        own = frame[frame["claim"] == claim["id"]].reset_index(drop=True)
        told = how(claim, kinds[claim["id"]]).partition(";")[0]
        _draw(ax, claim, own.assign(kind=kinds[claim["id"]]), f"{claim['title']}: {told}")
    if not shown:
        kit.say(axes[0], "no cell of a claim")
    axes[-1].set_xlabel("gain in perplexity, percent; to the right: in favour of what is named first")
    _legend(figure)
    names = [f"{claim['title']} ({how(claim, kinds[claim['id']]).replace(';', ',')})" for claim in shown]
    alt = alternative("Forest plot of gains in perplexity, in percent with intervals", names, "The table of claims")
    return Picture(NAME, TITLE, figure, _caption(claims, frame), alt, frame[_COLUMNS])


def cells_shown(shown: Sequence[Record]) -> pd.DataFrame:
    """A row per line of the plot; a cell with a diverged run has no numbers."""
    pairs = [(claim, cell) for claim in shown for cell in claim["cells"]]
    scales = {(cell["model"], cell["budget"]) for _, cell in pairs}
    frame = pd.DataFrame([tidy(claim, cell) for claim, cell in pairs], columns=[*_COLUMNS, "diverged", "regime"])
    runs = [cell_of(cell["cell"]) for _, cell in pairs]
    place = frame["regime"].where(frame["regime"].ne("") & (len(scales) == 1), frame["where"])
    several = frame.groupby("claim")["contrast"].transform("nunique") > 1
    return frame.astype(dict.fromkeys(_NUMBERS, "float64")).assign(
        optimizer=[one.optimizer if one else "" for one in runs],
        label=place.where(~several, frame["contrast"] + ", " + place),
    )


def _places(lines: Sequence[int], labels: float) -> tuple[Figure, list[Axes]]:
    """A figure with a panel of so many lines each, one below the other; laid out by hand, in inches, for there may be
    twenty panels, and the solver of matplotlib takes half a minute over them. labels: width of the longest."""
    left = MARGIN + labels + 0.2
    height = TOP + sum(LINE * n + HEADING for n in lines) + BOTTOM
    figure = Figure((WIDTH, height))
    axes, bottom = [], height - TOP
    for n in lines:
        bottom -= LINE * n + HEADING
        place = (left / WIDTH, (bottom + TICKS) / height, (WIDTH - left - RIGHT) / WIDTH, LINE * n / height)
        axes.append(figure.add_axes(place))
    return figure, axes


def _draw(axes: Axes, claim: Record, cells: pd.DataFrame, title: str) -> None:
    percent = {name: [100 * gain(value) for value in cells[name]] for name in _NUMBERS}
    frame = cells.assign(**percent).assign(
        at=range(len(cells)), decided=cells["verdict"].isin((SUPPORTED, CONTRADICTED))
    )
    styles = optimizer_styles(frame["optimizer"])
    if frame["mean"].notna().any():
        drawn = (
            kit.plot(frame, x="mean", y="at", color="optimizer")
            .add(so.Range(linewidth=0.9), xmin="family_low", xmax="family_high", orient="y", legend=False)
            .add(so.Range(linewidth=2.6), xmin="low", xmax="high", orient="y", legend=False)
            .add(so.Dot(pointsize=6, edgewidth=1.2), marker="optimizer", fill="decided", legend=False)
            .scale(**kit.styled(styles, fill={True: True, False: False}))
        )
        kit.draw(drawn, axes)
    for at, (kind, diverged, optimizer) in enumerate(zip(*(cells[c] for c in _TOLD), strict=True)):
        axes.text(1.01, at, f"{_SIGNS.get(kind, '')}{kind}", transform=axes.get_yaxis_transform(), va="center")
        if diverged:
            axes.plot(0.985, at, transform=axes.get_yaxis_transform(), color=styles[optimizer].colour, **kit.CROSS)
    two_sided = claim["direction"] in ("within", "outside")
    for threshold in {claim["threshold"], -claim["threshold"] if two_sided else claim["threshold"]}:
        axes.axvline(100 * gain(threshold), color=GREY, linestyle=kit.DASHED, linewidth=1)
    axes.axvline(0, color=BLACK, linewidth=0.6)
    axes.set_yticks(range(len(cells)), cells["label"])
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=6)
    box = axes.get_position()
    axes.set_title(title, loc="left", x=(MARGIN / WIDTH - box.x0) / box.width)


def _legend(figure: Figure) -> None:
    handles = [
        kit.line("95%, this cell alone", linewidth=2.6),
        kit.line("95%, all cells of the claim", linewidth=0.9),
        kit.line("least difference that matters", linestyle=kit.DASHED, linewidth=1),
        kit.line("verdict", marker="o", linestyle="none"),
        kit.line("no verdict", marker="o", markerfacecolor="white", linestyle="none"),
        *kit.diverged_entry(),
    ]
    figure.legend(handles=handles, loc="upper center", ncols=3, frameon=False)


def _caption(claims: Record, frame: pd.DataFrame) -> str:
    n = counts_text(frame.loc[frame["n"] > 0, "n"], "no pair of runs yet")
    scale = " Models far below the paper's: directions at most." if claims["directions_only"] else ""
    return (
        f"Gain in perplexity in percent, mean over paired seeds ({n}), one panel per claim with its own scale, in the "
        "marker of the optimizer that the claim is about. Thick: Student's 95% interval of the cell alone; thin: wide "
        "enough for all cells of the claim together. Look whether the interval lies on one side of the dashed line: to "
        "the right speaks for what is named first. A diverged run leaves no mean. Claims: "
        f"{claims['claims_sha256'][:12]}.{scale}"
    )
