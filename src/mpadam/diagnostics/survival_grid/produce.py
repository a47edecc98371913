"""From options to files: `produce(SurvivalGrid(), Path("results/smoke"))`."""

import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from mpadam.atomic import write_json
from mpadam.diagnostics.records import write_csv
from mpadam.diagnostics.survival_grid.measure import PARTS, Survival, measure
from mpadam.study.diagnostics import SurvivalGrid


def produce(options: SurvivalGrid, root: Path) -> None:
    """Write diagnostics/survival-grid/ under `root`: survival.csv, and the options in results.json."""
    folder = root / "diagnostics" / "survival-grid"
    write_csv(tidy([measure(fmt, options) for fmt in options.formats]), folder / "survival.csv")
    write_json(folder / "results.json", {"options": json.loads(json.dumps(asdict(options)))})


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
