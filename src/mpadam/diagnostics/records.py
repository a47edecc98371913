"""Files of numbers that the diagnostics leave beside their figures."""

from pathlib import Path

import pandas as pd

from mpadam.atomic import write_text


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Tidy data, numbers to six digits; a number that does not exist is an empty cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, frame.to_csv(index=False, lineterminator="\n", float_format="%.6g"))
