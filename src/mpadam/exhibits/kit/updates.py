"""The figure of an `UpdateProbe`: the share of updates that is rounded away, by step, layer and |w|, and their size."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from mpadam.analysis.style import BLACK, BLUE, GREEN, ORANGE, VERMILLION, Dash
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import drawing
from mpadam.probes.reading import LABELS, by_magnitude, share, summed

#: view -> colour, dash, width, marker
_LOOKS: dict[str, tuple[str, Dash, float, str]] = {
    "stored": (BLACK, "-", 2.6, "o"),
    "bf16": (BLUE, (0, (5, 2)), 1.3, "s"),
    "fp8_e4m3": (GREEN, (0, (4, 1.5, 1, 1.5)), 1.3, "^"),
    "fp8_e5m2": (ORANGE, (0, (1, 1.2)), 1.6, "v"),
    "nvfp4": (VERMILLION, (0, (8, 2, 1, 2)), 1.3, "D"),
}
_LAYERS = 14  # kinds of layers that are shown, those with the most updates
_FEWEST = 100  # updates of a magnitude that is drawn
_HEIGHT = 3.0


def draw_updates(records: list[dict[str, Any]], files: Iterable[Path]) -> list[Path]:
    """Write the figure to each file, in the format of its suffix; returns the files."""
    files = list(files)
    with drawing():
        kinds = _kinds(records)
        figure = kit.page(2 * _HEIGHT)
        rows: Any = figure.subfigures(2, 1)  # each lays out its own columns: names of layers are long
        (steps, sizes), (magnitudes, layers) = (row.subplots(1, 2) for row in rows)
        _by_step(steps, records)
        _by_size(sizes, records)
        _by_magnitude(magnitudes, records)
        _by_layer(layers, kinds)
        entries = [
            kit.line(LABELS[view], color=colour, linestyle=dash, linewidth=width, marker=marker)
            for view, (colour, dash, width, marker) in _LOOKS.items()
        ]
        kit.legend(figure, {"Weights": entries})
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file)
    return files


def _lines(axes: Axes, x: list[float], by_view: dict[str, list[float | None]]) -> None:
    for view, y in by_view.items():
        colour, dash, width, marker = _LOOKS[view]
        shown = [float("nan") if value is None else value for value in y]
        axes.plot(x, shown, color=colour, linestyle=dash, linewidth=width, marker=marker, markersize=3)


def _by_step(axes: Axes, records: list[dict[str, Any]]) -> None:
    lost = {view: [share(record["lost"][view], record["intended"]) for record in records] for view in _LOOKS}
    _lines(axes, [record["step"] for record in records], lost)
    axes.set(title="Lost updates by step", xlabel="optimizer step", ylabel="share that is lost", ylim=(-0.04, 1.04))


def _by_size(axes: Axes, records: list[dict[str, Any]]) -> None:
    total = summed(record["spacing"] for record in records)
    bins = records[0]["spacing"]["bins"]
    shares = {view: [share(count, sum(total[view])) for count in total[view]] for view in _LOOKS}
    _lines(axes, [exponent + 0.5 for exponent in bins], shares)
    axes.axvline(-1, color=kit.MUTED, linewidth=1, linestyle=kit.DOTTED)
    axes.annotate("half a spacing", (-1, 1), xycoords=("data", "axes fraction"), ha="right", va="top", color=kit.MUTED,
                  rotation=90, xytext=(-2, -3), textcoords="offset points")  # fmt: skip
    axes.set(title="Size of updates in spacings of the format", xlabel="|update| / spacing", ylabel="share of updates")
    axes.set_ylim(bottom=0)
    ticks = [exponent for exponent in bins if exponent % 4 == 0]
    kit.fixed_ticks(axes, ticks, [f"$2^{{{exponent}}}$" for exponent in ticks])


def _by_magnitude(axes: Axes, records: list[dict[str, Any]]) -> None:
    found = by_magnitude(records)
    bins = sorted(e for e, count in found["intended"].items() if e != "zero" and count >= _FEWEST * len(records))
    lost = {view: [share(found[view].get(e, 0.0), found["intended"][e]) for e in bins] for view in _LOOKS}
    _lines(axes, [exponent + 0.5 for exponent in bins], lost)
    axes.set(title="Lost updates by size of the weight", xlabel="|w|", ylabel="share that is lost", ylim=(-0.04, 1.04))
    ticks = [exponent for exponent in bins if exponent % 4 == 0]
    kit.fixed_ticks(axes, ticks, [f"$2^{{{exponent}}}$" for exponent in ticks])


def _kinds(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Layers that differ in their numbers only, together -> their counts; the largest, in the order of the model."""
    numbers = ("intended", "lost")
    kinds: dict[str, dict[str, Any]] = {}
    for name, layer in summed(record["layers"] for record in records).items():
        kind = re.sub(r"\b\d+\b", "*", name).removeprefix("model.").removesuffix(".weight")
        kinds[kind] = summed([kinds.get(kind, {}), {key: layer[key] for key in numbers}])
    largest = sorted(kinds, key=lambda kind: -kinds[kind]["intended"])[:_LAYERS]
    return {kind: each for kind, each in kinds.items() if kind in largest and each["intended"]}


def _by_layer(axes: Axes, kinds: dict[str, dict[str, Any]]) -> None:
    for view, (colour, _, _, marker) in _LOOKS.items():
        lost = [each["lost"][view] / each["intended"] for each in kinds.values()]
        axes.plot(lost, range(len(kinds)), linestyle="none", color=colour, marker=marker,
                  markersize=7 if view == "stored" else 4)  # fmt: skip
    axes.set(title="Lost updates by layer", xlabel="share that is lost", xlim=(-0.04, 1.04))
    axes.set_yticks(range(len(kinds)), list(kinds))
    axes.invert_yaxis()
