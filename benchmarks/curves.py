"""How a time grows with what it is spent on: parameters, runs, jobs.

    curves = [Curve("aggregate", "runs", (Point(16, (2.1, 2.2)), Point(64, (2.4, 2.4))))]
    report(curves, about, out=folder)                growth.csv, growth.json, growth.png

Two numbers a curve. The line `seconds = fixed + each * size`, fitted to relative errors, says what one more costs: most
of a command's time is what it takes with nothing to do. The slope, d log(seconds) / d log(size) between the two largest
sizes, says whether it stays a line: above 1 it does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import publish, quartiles

PANEL = 3.6  # inches
HEADER = ("", "by", "sizes", "seconds", "fixed, s", "further, s", "each", "slope at the end")


@dataclass(frozen=True)
class Point:
    """size: how many.  samples: seconds, one a round."""

    size: int
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return quartiles(self.samples)[1]


@dataclass(frozen=True)
class Curve:
    """One thing at several sizes, the smallest first.

    of: what the size counts, the same for all curves of a panel.  per: of how many the cost of one more is told.
    """

    name: str
    of: str
    points: tuple[Point, ...]
    per: int = 1000

    def __post_init__(self) -> None:
        sizes = [point.size for point in self.points]
        if len(sizes) < 2 or sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(f"{self.name}: sizes {sizes}: give two or more, each larger than the one before")

    @property
    def line(self) -> tuple[float, float]:
        """(seconds fixed, seconds each): least squares of relative errors, neither below zero."""
        sizes = np.array([point.size for point in self.points], dtype=float)
        seconds = np.array([point.median for point in self.points])
        columns = np.stack([np.ones_like(sizes), sizes], axis=1) / seconds[:, None]
        fixed, each = np.linalg.lstsq(columns, np.ones_like(seconds))[0]
        if fixed < 0 or each < 0:  # then the best is a line without that part
            only = columns[:, 1] if fixed < 0 else columns[:, 0]
            best = float(only.sum() / (only @ only))
            return (0.0, best) if fixed < 0 else (best, 0.0)
        return float(fixed), float(each)

    @property
    def slope(self) -> float:
        """d log(seconds) / d log(size) between the two largest sizes."""
        before, last = self.points[-2:]
        return math.log(last.median / before.median) / math.log(last.size / before.size)


def report(curves: Sequence[Curve], about: Mapping[str, Any], *, out: Path) -> list[dict[str, Any]]:
    """Print a table, write it as CSV, every sample as JSON, and a plot; returns the table's rows."""
    rows = [_row(curve) for curve in curves]
    samples = [{**vars(curve), "points": [vars(point) for point in curve.points]} for curve in curves]
    publish(
        "growth", about, (HEADER, *(tuple(map(_text, row.values())) for row in rows)), rows, out=out, curves=samples
    )
    draw(curves, out / "growth.png")
    return rows


def read_curves(file: Path) -> list[Curve]:
    """The curves of a `growth.json`. Raises ValueError if it is another file."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))["curves"]
        return [
            Curve(**{**c, "points": tuple(Point(p["size"], tuple(p["samples"])) for p in c["points"])}) for c in kept
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{file}: not a growth.json ({type(error).__name__}: {error})") from None


def draw(curves: Sequence[Curve], file: Path) -> None:
    """A panel for each thing that sizes count, both axes logarithmic: medians, quartiles, and the fitted line."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    from mpadam.exhibits.kit.pictures import drawing

    panels = list(dict.fromkeys(curve.of for curve in curves))
    with drawing():
        size = (PANEL * len(panels), 1.2 * PANEL)
        figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
        for axis, of in zip(axes[0], panels, strict=True):
            for index, curve in enumerate(curve for curve in curves if curve.of == of):
                _draw_curve(axis, curve, index)
            axis.set(xscale="log", yscale="log", xlabel=of, ylabel="seconds")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
        figure.savefig(file, dpi=150)
        plt.close(figure)


def _draw_curve(axis: Any, curve: Curve, index: int) -> None:
    sizes = np.array([point.size for point in curve.points])
    low, middle, high = (np.array(column) for column in zip(*(quartiles(p.samples) for p in curve.points), strict=True))
    fixed, each = curve.line
    between = np.geomspace(sizes[0], sizes[-1], 50)
    colour = f"C{index}"
    axis.plot(between, fixed + each * between, color=colour, linewidth=1)
    axis.errorbar(sizes, middle, yerr=(middle - low, high - middle), color=colour, fmt="os^Dv"[index % 5], markersize=4,
                  capsize=2, linewidth=0, elinewidth=1, label=f"{curve.name}: slope {curve.slope:.2f}")  # fmt: skip


def _row(curve: Curve) -> dict[str, Any]:
    fixed, each = curve.line
    return {
        "name": curve.name,
        "of": curve.of,
        "sizes": " ".join(str(point.size) for point in curve.points),
        "seconds": " ".join(f"{point.median:.3g}" for point in curve.points),
        "fixed": fixed,
        "further": curve.per * each,
        "each": f"{curve.per:,}",
        "slope": curve.slope,
    }


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
