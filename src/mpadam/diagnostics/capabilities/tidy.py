"""Capabilities as tidy data, from the records of results.json; without torch."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

#: task -> column of the number of updates that it took
TASKS = {"zero": "updates_to_leave_zero", "sign": "updates_to_change_sign", "small": "updates_to_grow"}
Record = dict[str, Any]


def tidy(found: Sequence[Record]) -> pd.DataFrame:
    """A row per combination; empty where a task was not done within the limit, or no edge was found."""
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
