"""How a figure becomes files: PDF, SVG, PNG and its words, the same bytes for the same runs; and phrases that these
words share.

All figures are WIDTH wide and have text of one size, so that they look alike on the page and in print, where they are
shown at the size that their record names.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from mpadam.analysis.cells import Cell
from mpadam.atomic import write_bytes, write_json, write_text

WIDTH = 9.0  # inches, of every figure
PIXELS = 96  # of CSS, per inch: at its own size, text of 9 points is 12 pixels high
TEXT = 9.0  # points
_SIZES = (
    *("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"),
    *("legend.fontsize", "legend.title_fontsize"),
)
#: seaborn's theme, with text of one size and what makes files reproducible
THEME: dict[str, Any] = {
    **sns.axes_style("whitegrid"),
    **sns.plotting_context("paper"),
    **dict.fromkeys(_SIZES, TEXT),
    "font.sans-serif": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "xtick.bottom": True,
    "ytick.left": True,
    "svg.hashsalt": "mpadam",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}
#: without the dates that matplotlib would write
_METADATA: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


@dataclass(frozen=True)
class Picture:
    """A figure with its caption, the text that is read out in its place, and the numbers it shows, if it has any."""

    name: str
    title: str
    figure: Figure
    caption: str
    alt: str
    data: pd.DataFrame | None = None


def alternative(what: str, panels: Iterable[str], numbers: str, *, shown: str = "") -> str:
    """The text that is read out in place of a figure. numbers: what else holds them."""
    names = "; ".join(panels)
    parts = [what, f"One panel for each of: {names}" if names else "Nothing to show yet", shown]
    return f"{'. '.join(filter(None, parts))}. {numbers} holds the same numbers."


def counts_text(counts: Iterable[int], none: str) -> str:
    """`n = 2`, or `n = 1 to 3`; `none` where nothing is counted."""
    found = sorted(set(counts))
    if not found:
        return none
    return f"n = {found[0]}" + (f" to {found[-1]}" if len(found) > 1 else "")


def seeds_text(cells: Iterable[Cell]) -> str:
    """How many seeds the means of these cells are over."""
    return counts_text((cell.perplexity.n for cell in cells if cell.perplexity), "no completed cell")


def lost_text(cells: Iterable[Cell]) -> str:
    """` Of 16 cells, 1 with a diverged run have a cross and no mean.`; empty where all have a mean."""
    found = list(cells)
    diverged = sum(bool(cell.diverged) for cell in found)
    missing = sum(not cell.completed and not cell.diverged for cell in found)
    lost = [f"{diverged} with a diverged run have a cross and no mean"] if diverged else []
    lost += [f"{missing} have no result yet"] if missing else []
    return f" Of {len(found)} cells, {' and '.join(lost)}." if lost else ""


@contextmanager
def drawing() -> Iterator[None]:
    """The settings of every figure of the study, whatever the user's own matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(THEME)  # type: ignore[arg-type]  # names of settings are strings to seaborn
        yield


def write_picture(picture: Picture, folder: Path) -> list[Path]:
    """Write the figure in every format, its words and its size in CSS pixels as JSON, and its numbers as CSV; returns
    the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for suffix, metadata in _METADATA.items():
        buffer = BytesIO()
        with drawing():
            picture.figure.savefig(buffer, format=suffix, metadata=metadata)
        files.append(folder / f"{picture.name}.{suffix}")
        drawn = buffer.getvalue()
        write_bytes(files[-1], with_numbered_clips(drawn, picture.name) if suffix == "svg" else drawn)
    files.append(folder / f"{picture.name}.json")
    width, height = (round(PIXELS * inches) for inches in picture.figure.get_size_inches())
    words = {"title": picture.title, "caption": picture.caption, "alt": picture.alt}
    write_json(files[-1], {**words, "width": width, "height": height})
    if picture.data is not None:
        files.append(folder / f"{picture.name}.csv")
        write_text(files[-1], picture.data.to_csv(index=False, lineterminator="\n"))
    return files


def with_numbered_clips(svg: bytes, name: str) -> bytes:
    """An SVG of matplotlib with its clip paths numbered, after the picture's name: it names them by a hash of
    coordinates, whose last digit the layout's solver does not give twice, although what is drawn is rounded."""
    hashes = list(dict.fromkeys(re.findall(rb'<clipPath id="(p[0-9a-f]{10})"', svg)))
    numbers = {clip: f"{name}-clip-{number}".encode() for number, clip in enumerate(hashes)}
    return re.sub(rb"\bp[0-9a-f]{10}\b", lambda found: numbers.get(found[0], found[0]), svg)
