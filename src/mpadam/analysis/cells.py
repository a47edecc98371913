"""Cells of the study: the runs of one (model, budget, regime, optimizer), which differ only in their seed.

Table 2 and Fig. 4 show cells. A cell with a diverged run has no mean: the mean of what survived would flatter it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd

from mpadam.analysis.statistics import Estimate, estimate, mean_gain

#: the entry that gains are relative to
BASELINE = "adamw"


@dataclass(frozen=True)
class CellKey:
    model: str
    budget: int
    regime: str
    optimizer: str

    @property
    def place(self) -> tuple[str, int, str]:
        """Model, budget, regime."""
        return self.model, self.budget, self.regime

    @property
    def folder(self) -> str:
        """Where its seeds are, below `runs/`."""
        return f"{self.model}/{self.budget}x/{self.regime}/{self.optimizer}"


def cell_of(folder: str) -> CellKey | None:
    """The cell whose runs are in this folder below `runs/`; None of an empty name."""
    if not folder:
        return None
    model, budget, regime, optimizer = folder.split("/")
    return CellKey(model, int(budget.removesuffix("x")), regime, optimizer)


@dataclass(frozen=True)
class Cell:
    """What became of a cell's runs.

    completed: seed -> validation perplexity; the others list the seeds that have none, by reason.
    perplexity: over the completed runs; None if there are none, or if any run diverged.
    gain: relative gain over the baseline at the same seeds; None where none pair up, and for the baseline itself.
    gain_diverged: there is no gain because a run of this cell or of its baseline diverged.
    """

    key: CellKey
    completed: dict[int, float]
    diverged: tuple[int, ...]
    missing: tuple[int, ...]
    refused: tuple[int, ...]
    perplexity: Estimate | None
    gain: Estimate | None = None
    gain_diverged: bool = False

    @property
    def asked(self) -> int:
        return len(self.completed) + len(self.diverged) + len(self.missing) + len(self.refused)


def cells(runs: pd.DataFrame) -> list[Cell]:
    """The cells of `Collected.runs`, in the order in which the grid first names them."""
    keys = ["model", "budget", "regime", "optimizer"]
    assert not runs[[*keys, "status"]].isna().any(axis=None), "a missing key would drop its runs from the groups"
    alone = {}
    for values, group in runs.groupby(keys, sort=False):
        key = CellKey(*values)  # type: ignore[arg-type]  # groupby types its keys as Hashable
        alone[key] = _cell(key, group)
    return [_with_gain(cell, alone.get(replace(key, optimizer=BASELINE))) for key, cell in alone.items()]


def _cell(key: CellKey, runs: pd.DataFrame) -> Cell:
    seeds = {status: tuple(group["seed"].tolist()) for status, group in runs.groupby("status")}
    done = runs[runs["status"] == "completed"]
    completed = dict(zip(done["seed"].tolist(), done["val_ppl"].tolist(), strict=True))
    diverged = seeds.get("diverged", ())
    return Cell(
        key,
        completed=completed,
        diverged=diverged,
        missing=seeds.get("missing", ()),
        refused=seeds.get("refused", ()),
        perplexity=None if diverged or not completed else estimate(list(completed.values())),
    )


def _with_gain(cell: Cell, baseline: Cell | None) -> Cell:
    if baseline is None or baseline.key == cell.key:
        return cell
    if baseline.diverged or cell.diverged:
        return replace(cell, gain_diverged=True)
    return replace(cell, gain=mean_gain(baseline.completed, cell.completed))


def cells_frame(all_cells: Iterable[Cell]) -> pd.DataFrame:
    """One row per cell: how many runs of which status, and the numbers, empty where there are none."""
    return pd.DataFrame(
        [
            {
                **vars(cell.key),
                "asked": cell.asked,
                "n": len(cell.completed),
                "diverged": len(cell.diverged),
                "missing": len(cell.missing),
                "refused": len(cell.refused),
                **_numbers("val_ppl", cell.perplexity),
                "gain_n": cell.gain.n if cell.gain else 0,
                **_numbers("gain", cell.gain),
            }
            for cell in all_cells
        ]
    )


def _numbers(prefix: str, found: Estimate | None) -> dict[str, float | None]:
    return {f"{prefix}_{name}": getattr(found, name) if found else None for name in ("mean", "sd", "low", "high")}
