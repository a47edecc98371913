"""Loss curves of all runs: a panel for each model, budget and regime, drawn by curves.html as SVG in the page.

A curve is a handful of points, so that a page of hundreds of runs stays small; figures.js lets a reader choose a
panel, hide optimizers and ask for a run and a value. Without it all panels are there, and every curve is a link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from mpadam.analysis.entries import is_level
from mpadam.analysis.style import GREY, optimizer_styles, regime_styles
from mpadam.presence import is_there
from mpadam.site.records import point
from mpadam.site.rows import RunRow
from mpadam.study.run_folder import RunFolder, read_json
from mpadam.training.plot import ticks

POINTS = 40  # of a curve, at most
WINDOW = 4096  # bytes that a point is the mean of, at most: a study has a thousand long files
WIDTH, HEIGHT = 1000, 4000  # of a panel in its own units, so that coordinates are short integers
LEVELS = "levels of ablations"
_DASHES = ("", "7 3", "2 3", "7 3 2 3")  # of optimizers with one colour
Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Curve:
    """A run. line: path of its training losses. marks: of its validations, empty where it has none."""

    row: RunRow
    line: str
    marks: str


@dataclass(frozen=True)
class Lines:
    """What the key has an entry for: an optimizer, its seeds together; or all levels of ablations."""

    label: str
    colour: str
    dash: str
    curves: list[Curve]


@dataclass(frozen=True)
class Panel:
    """name: its regime, after model and budget where there are several. across, up: place on an axis -> label."""

    name: str
    anchor: str
    steps: int
    low: float
    high: float
    across: dict[int, str]
    up: dict[int, str]
    lines: list[Lines]


def loss_panels(rows: Sequence[RunRow]) -> list[Panel]:
    """The panels of all runs that have logged a loss. Those of one model and budget share their scales."""
    trained = [(row, points) for row in rows if (points := training_losses(RunFolder(row.folder).metrics))]
    places = list(dict.fromkeys((row.key.model, row.key.budget) for row, _ in trained))
    panels = []
    for place in places:
        own = [(row, points) for row, points in trained if (row.key.model, row.key.budget) == place]
        steps, scale = _scales([points for _, points in own])
        for regime in regime_styles(row.key.regime for row, _ in own):
            shown = [(row, points) for row, points in own if row.key.regime == regime]
            name = f"{place[0]} {place[1]}x {regime}" if len(places) > 1 else regime
            panels.append(_panel(name, shown, steps, scale))
    return panels


def training_losses(metrics: Path) -> Points:
    """(step, loss) of at most POINTS places of a metrics file, each the mean of the lines there."""
    if not is_there(metrics):
        return []
    size, found = metrics.stat().st_size, []
    with metrics.open("rb") as file:
        for part in range(POINTS):
            start, end = size * part // POINTS, size * (part + 1) // POINTS
            if start:  # a line belongs to the part that it begins in
                file.seek(start - 1)
                file.readline()
            lines = []
            while file.tell() < min(end, start + WINDOW):
                lines.append(file.readline().decode("utf-8", errors="replace"))
            if known := [pair for line in lines if (pair := point(line)) is not None]:
                found.append((round(fmean(step for step, _ in known)), fmean(loss for _, loss in known)))
    return found


def _scales(curves: Sequence[Points]) -> tuple[int, list[float]]:
    """The last step, and round losses that enclose the lowest, and the highest after a tenth of the training."""
    steps = max(points[-1][0] for points in curves)
    late = max((loss for points in curves for step, loss in points if step > steps / 10), default=0.0)
    first = max(points[0][1] for points in curves)
    return steps, ticks(min(loss for points in curves for _, loss in points), min(late, first))


def _panel(name: str, shown: Sequence[tuple[RunRow, Points]], steps: int, scale: Sequence[float]) -> Panel:
    low, high = scale[0], scale[-1]

    def path(points: Points, join: str) -> str:
        """The points in the panel's units, each relative to the one before, which is shorter."""
        at = [(round(WIDTH * x / steps), round(HEIGHT * (high - y) / (high - low))) for x, y in points]
        moves = [f"{x - u} {y - v}" for (u, v), (x, y) in pairwise([(0, 0), *at])]
        return f"M{join.join(moves)}" if moves else ""

    styles = optimizer_styles(row.key.optimizer for row, _ in shown if not is_level(row.key.optimizer))
    lines: list[Lines] = []
    for entry in (*styles, LEVELS):
        own = [
            pair for pair in shown if (LEVELS if is_level(pair[0].key.optimizer) else pair[0].key.optimizer) == entry
        ]
        label, colour = (entry, GREY) if entry == LEVELS else (styles[entry].label, styles[entry].colour)
        dash = _DASHES[sum(other.colour == colour for other in lines) % len(_DASHES)]
        curves = [Curve(row, path(points, "l"), path(_validations(row), "h0m")) for row, points in own]
        if curves:
            lines.append(Lines(label, colour, dash, curves))
    across = {round(WIDTH * x / steps): f"{x:,.0f}" for x in ticks(0.0, steps) if x <= steps}
    up = {round(HEIGHT * (high - y) / (high - low)): f"{y:g}" for y in scale}
    return Panel(name, f"curves-{name.replace(' ', '-')}", steps, low, high, across, up, lines)


def _validations(row: RunRow) -> Points:
    """(step, loss) of its validations, if its summary is the one that the row is of."""
    summary = read_json(RunFolder(row.folder).summary) or {}
    entries = summary.get("validation") or [] if summary.get("hash") == row.hash else []
    return [(entry["step"], entry["loss"]) for entry in entries if math.isfinite(entry["loss"])]
