"""From options to files: `produce(Overview(), Path("results/smoke"))`."""

from __future__ import annotations

from pathlib import Path

from mpadam.analysis.pictures import write_picture
from mpadam.diagnostics.overview.figure import figure2
from mpadam.study.diagnostics import Overview


def produce(options: Overview, root: Path) -> None:
    """Write figure 2 under `root`."""
    write_picture(figure2(), root / "figures")
