"""Whether a folder of results has every table and figure that its study asks for, with numbers in them.

    for problem in problems(Path("results/smoke/paper"), exhibits(config)): ...

python -m mpadam.exhibits.complete results/smoke/paper
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import image

from mpadam.exhibits.registry import Exhibit, exhibits
from mpadam.presence import is_there, why_unreadable
from mpadam.study.load import load_study


def problems(root: Path, wanted: Iterable[Exhibit]) -> list[str]:
    """One line for each file that is not there, empty, or without a finite number, in the folder `root`."""
    return [f"{exhibit.name}: {problem}" for exhibit in wanted for problem in _problems_of(root, exhibit)]


def _problems_of(root: Path, exhibit: Exhibit) -> list[str]:
    try:
        return list(_problems(root, exhibit))
    except OSError as error:
        return [why_unreadable(error)]


def _problems(root: Path, exhibit: Exhibit) -> Iterator[str]:
    yield from (f"{path}: no such file" for path in exhibit.files if not is_there(root / path))
    if exhibit.folder == "figures":
        yield from _picture(root / "figures" / f"{exhibit.name}.png")
    for file, columns in exhibit.checked.items():
        yield from _numbers(root / file, columns) if columns else _seen(root / file)


def _numbers(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """Columns of a CSV file without a finite number."""
    if not is_there(path) or not path.read_text(encoding="utf-8").strip():
        yield f"{path.name}: no numbers"
        return
    frame = pd.read_csv(path)
    for column in columns:
        values = pd.to_numeric(frame[column], errors="coerce") if column in frame else pd.Series(dtype=float)
        if not np.isfinite(values.to_numpy(dtype=float)).any():
            yield f"{path.name}: {column}: no finite number"


def _picture(path: Path) -> Iterator[str]:
    """A picture of one colour."""
    if is_there(path) and not np.ptp(image.imread(path)[..., :3], axis=(0, 1)).any():
        yield f"{path.name}: nothing drawn"


def _seen(path: Path) -> Iterator[str]:
    """A record without entries."""
    content = json.loads(path.read_text(encoding="utf-8")) if is_there(path) else {}
    if not any(isinstance(value, list | dict) and value for key, value in content.items() if key != "regime"):
        yield f"{path.name}: nothing seen"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = problems(folder, exhibits(load_study([folder / "study.yaml"])))
    print("\n".join(found) or f"{folder}: every table and figure is there")
    sys.exit(1 if found else 0)
