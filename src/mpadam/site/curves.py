"""Loss curves of all runs: a panel for each model, budget and regime, drawn by curves.html as SVG in the page.

A curve is a handful of points, so that a page of hundreds of runs stays small; figures.js lets a reader choose a
panel, hide optimizers and ask for a run and a value. Without it all panels are there, and every curve is a link.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from mpadam.analysis.entries import is_level
from mpadam.analysis.style import GREY, OptimizerStyle, optimizer_styles, regime_styles
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
class Run:
    row: RunRow
    training: Points
    validation: Points

    @property
    def entry(self) -> str:
        """Of the key: its optimizer, or that it is one of the levels of ablations."""
        return LEVELS if is_level(self.row.key.optimizer) else self.row.key.optimizer


@dataclass(frozen=True)
class Lines:
    """What the key has an entry for, its seeds together. curves: of each run, with the paths of its training losses
    and of its validations, empty where it has none."""

    label: str
    colour: str
    dash: str
    curves: list[tuple[RunRow, str, str]]


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
    runs = [Run(row, training_losses(RunFolder(row.folder).metrics), _validations(row)) for row in rows]
    trained: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        if run.training:
            trained.setdefault((run.row.key.model, run.row.key.budget), []).append(run)
    panels = []
    for (model, budget), own in trained.items():
        steps, scale = _scales(own)
        for regime in regime_styles(run.row.key.regime for run in own):
            name = f"{model} {budget}x {regime}" if len(trained) > 1 else regime
            panels.append(_panel(name, [run for run in own if run.row.key.regime == regime], steps, scale))
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


def _scales(runs: Sequence[Run]) -> tuple[int, list[float]]:
    """The last step, and round losses that enclose the lowest, and the highest after a tenth of the training."""
    points = [point for run in runs for point in (*run.training, *run.validation)]
    steps, first = max(step for step, _ in points), max(run.training[0][1] for run in runs)
    late = max((loss for step, loss in points if step > steps / 10), default=first)
    return steps, ticks(min(loss for _, loss in points), min(late, first))


def _panel(name: str, runs: Sequence[Run], steps: int, scale: Sequence[float]) -> Panel:
    low, high = scale[0], scale[-1]

    def path(points: Points, join: str) -> str:
        """The points in the panel's units, each relative to the one before, which is shorter."""
        at = [(round(WIDTH * x / steps), round(HEIGHT * (high - y) / (high - low))) for x, y in points]
        moves = [f"{x - u} {y - v}" for (u, v), (x, y) in pairwise([(0, 0), *at])]
        return f"M{join.join(moves)}" if moves else ""

    levels = {LEVELS: OptimizerStyle(LEVELS, GREY, "")}
    styles = {**optimizer_styles(run.entry for run in runs if run.entry != LEVELS), **levels}
    lines: list[Lines] = []
    for entry, style in styles.items():
        dash = _DASHES[sum(other.colour == style.colour for other in lines) % len(_DASHES)]
        own = [(run.row, path(run.training, "l"), path(run.validation, "h0m")) for run in runs if run.entry == entry]
        if own:
            lines.append(Lines(style.label, style.colour, dash, own))
    across = {round(WIDTH * x / steps): f"{x:,.0f}" for x in ticks(0.0, steps) if x <= steps}
    up = {round(HEIGHT * (high - y) / (high - low)): f"{y:g}" for y in scale}
    return Panel(name, f"curves-{name.replace(' ', '-')}", steps, low, high, across, up, lines)


def _validations(row: RunRow) -> Points:
    """(step, loss) of its validations, if its summary is the one that the row is of."""
    summary = read_json(RunFolder(row.folder).summary) or {}
    entries = summary.get("validation") or [] if summary.get("hash") == row.hash else []
    known = (entry for entry in entries if isinstance(entry["loss"], float) and math.isfinite(entry["loss"]))
    return [(entry["step"], entry["loss"]) for entry in known]
