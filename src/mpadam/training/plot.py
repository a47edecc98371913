"""`loss.svg` of a run folder: training loss and validations against steps, drawn now and then and at the end.

Written by hand, since importing a plotting library takes longer than a small training.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mpadam.atomic import write_text
from mpadam.study.run_folder import RunFolder, read_metrics
from mpadam.study.spec import RunFile

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 36, 44
TRAIN, VALIDATION = "#4477aa", "#cc3311"
MAX_POINTS = 1000

Point = tuple[float, float]


class LossPlot:
    """Draws the picture at the first logged step of every `plot_every` steps, and at every validation.

    validation: the entries of the run, which grow while it trains.
    """

    def __init__(self, folder: RunFolder, run: RunFile, validation: Sequence[Mapping[str, Any]]) -> None:
        self._folder, self._run, self._validation = folder, run, validation
        self._drawn = 0

    def step(self, record: Mapping[str, Any]) -> None:
        """record: a line of metrics.jsonl, already written."""
        number = int(record["step"]) // self._run.plot_every
        if number > self._drawn:
            self._drawn = number
            draw(self._folder, self._run, self._validation)

    def validation(self, entry: Mapping[str, Any]) -> None:
        draw(self._folder, self._run, self._validation)

    def close(self) -> None:
        """The last picture is drawn with the other results."""


def draw(folder: RunFolder, run: RunFile, validation: Sequence[Mapping[str, Any]]) -> None:
    """Write `loss.svg` from what metrics.jsonl holds now."""
    train = [(record["step"], record["loss"]) for record in read_metrics(folder.metrics)]
    points = [(entry["step"], entry["loss"]) for entry in validation]
    write_text(folder.plot, loss_svg(train, points, title=run.labels.title))


def loss_svg(train: Sequence[Point], validation: Sequence[Point], *, title: str) -> str:
    """An SVG document.

    train, validation: (step, loss in nats per token) pairs; values that are not finite are left out.
    """
    train = [p for p in train[:: -(-len(train) // MAX_POINTS) or 1] if math.isfinite(p[1])]
    validation = [p for p in validation if math.isfinite(p[1])]
    points = [*train, *validation] or [(0.0, 0.0)]
    x_end = max(1.0, *(x for x, _ in points))
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points))
    low, high = y_ticks[0], y_ticks[-1]

    def place(point: Point) -> Point:
        x = LEFT + point[0] / x_end * (WIDTH - LEFT - RIGHT)
        return round(x, 1), round(TOP + (high - point[1]) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    line = " ".join(f"{x},{y}" for x, y in map(place, train))
    heights = [(y, place((0, y))[1]) for y in y_ticks]
    parts = [
        _text(WIDTH / 2, 22, title, "middle", size=14),
        *(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}" stroke="#ddd"/>\n'
            + _text(LEFT - 6, height + 4, f"{y:g}", "end")
            for y, height in heights
        ),
        *(_text(place((x, low))[0], HEIGHT - BOTTOM + 18, f"{x:g}", "middle") for x in ticks(0.0, x_end) if x <= x_end),
        f'<polyline points="{line}" fill="none" stroke="{TRAIN}" stroke-width="1.5"/>',
        *(f'<circle cx="{x}" cy="{y}" r="4" fill="{VALIDATION}"/>' for x, y in map(place, validation)),
        _text(WIDTH / 2, HEIGHT - 8, "step", "middle"),
        _text(LEFT, TOP - 8, "loss (nats per token)", "start"),
        _text(WIDTH - RIGHT, TOP - 8, "training", "end", color=TRAIN),
        _text(WIDTH - RIGHT - 64, TOP - 8, "validation", "end", color=VALIDATION),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, content: str, anchor: str, *, size: int = 11, color: str = "#333") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(content)}</text>'


def ticks(low: float, high: float) -> list[float]:
    """Round values that enclose [low, high], about five of them."""
    span = max(high - low, 1e-3)
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(k for k in (1, 2, 5, 10) if span / (step * k) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]
