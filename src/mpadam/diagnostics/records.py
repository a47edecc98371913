"""Files of numbers that the diagnostics leave for tables and figures; without torch."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from mpadam.atomic import write_json, write_text

#: task of Table 1 -> column of the number of updates that it took
TASKS = {"zero": "updates_to_leave_zero", "sign": "updates_to_change_sign", "small": "updates_to_grow"}


def write_results(folder: Path, options: Any, **found: Any) -> None:
    """results.json: the options, a dataclass, and what was found, as plain data."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", {"options": asdict(options), **found})


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Tidy data, numbers to six digits; a number that does not exist is an empty cell."""
    write_text(path, frame.to_csv(index=False, lineterminator="\n", float_format="%.6g"))


def tidy_capabilities(found: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A row per `Capability` of results.json; empty where a task was not done in time, or no edge was found."""
    frame = pd.DataFrame(
        {
            **{"format": one["fmt"], "optimizer": one["optimizer"], "write_back": one["write_back"]},
            **{column: one[task] for task, column in TASKS.items()},
            **{"lost_below": one["edges"]["below"], "lost_from": one["edges"]["above"]},
            **{"lost_everywhere": one["edges"]["everywhere"], "lost_between_share": round(one["edges"]["gaps"], 3)},
        }
        for one in found
    )
    return frame.astype(dict.fromkeys(TASKS.values(), "Int64"))
