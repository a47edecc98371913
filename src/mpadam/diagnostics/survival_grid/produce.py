"""From options to files: `produce(SurvivalGrid(), Path("results/smoke"))`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mpadam.analysis.pictures import write_picture
from mpadam.diagnostics.records import write_csv
from mpadam.diagnostics.survival_grid.figure import figure1
from mpadam.diagnostics.survival_grid.measure import PARTS, Survival, measure
from mpadam.study.diagnostics import SurvivalGrid


def produce(options: SurvivalGrid, root: Path) -> None:
    """Write diagnostics/survival-grid/survival.csv and figure 1 under `root`."""
    found = [measure(fmt, options) for fmt in options.formats]
    write_csv(tidy(found), root / "diagnostics" / "survival-grid" / "survival.csv")
    write_picture(figure1(options, found), root / "figures")


def tidy(found: list[Survival]) -> pd.DataFrame:
    """A row a format, part and bin of |w|."""
    return pd.DataFrame(
        [
            {
                "format": survival.fmt,
                "optimizer": part.optimizer,
                "part": "both" if part.branch == "delta" else part.branch,
                "magnitude": survival.magnitudes[bin_].item(),
                "mean_step": survival.sizes[row, bin_].item(),
                "share_changed": survival.shares[row, bin_].item(),
                "least_step_min": survival.least[0, bin_].item(),
                "least_step_max": survival.least[1, bin_].item(),
                "share_stored_as_zero": survival.zeros[bin_].item(),
            }
            for survival in found
            for row, part in enumerate(PARTS)
            for bin_ in range(len(survival.magnitudes))
        ]
    )
