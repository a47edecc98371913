"""Which files of a study let somebody else check its results: what runs and trials were, and what became of them.

Runs and trials become one archive (`study.archive`). Tables and figures are kept as they are, figures as SVG alone.
Weights, token files, pages and the workflow's own logs stay behind, and so does the long table of looks at updates:
`mpadam probes` makes it of the runs' own lines, and `mpadam site` the pages, with links to what is there.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from mpadam.presence import is_there
from mpadam.study.archive import ARCHIVE, open_study, pack
from mpadam.study.paths import PROBES, StudyPaths

_RUN = ("run.yaml", "summary.json", "metrics.jsonl", "environment.json")
_VIEWS = ("", "paper/")
#: packed
_RECORDS = (
    "tuning/*/*/*/selected.yaml",
    *(f"runs/*/*/*/*/*/{name}" for name in (*_RUN, "train.log", "loss.svg", "probes.jsonl")),
    *(f"tuning/*/*/*/trial*/{name}" for name in _RUN),
)
#: copied, from below the study's folder
_PATTERNS = (
    *("study.yaml", "data/manifest.json", "data/tokenizer/*"),
    "paper/diagnostics/**/*",
    *(f"{view}tables/*" for view in _VIEWS),
    *(f"{view}figures/*.{suffix}" for view in _VIEWS for suffix in ("svg", "json", "csv")),
    *(f"{view}claims.json" for view in _VIEWS),
)


def keep(study: Path, out: Path) -> list[Path]:
    """Write those files of the study in that folder to a new folder; returns what was written.

    Raises ValueError if `study` is no study's folder with a result, or `out` is there already or inside it.
    """
    records = open_study(StudyPaths(study.name, study.parent)).records
    if not is_there(study / "data" / "manifest.json") or not any(records.glob("runs/*/*/*/*/*/summary.json")):
        raise ValueError(
            f"{study}: no folder of a study with results, which has data/manifest.json and runs/; see results/README.md"
        )
    if out.resolve().is_relative_to(study.resolve()):
        raise ValueError(f"{out}: lies inside {study}; name a folder outside")
    if is_there(out) and any(out.iterdir()):
        raise ValueError(f"{out}: is there already, and is not overwritten; delete it, or name another")
    copies = [_copy(path, out / path.relative_to(study)) for path in _files(study, _PATTERNS)]
    pack(_files(records, _RECORDS), records, out / ARCHIVE)
    return [*copies, out / ARCHIVE]


def _files(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for _ in os.walk(folder, onerror=_raise):  # a pattern passes over folders that may not be read
        pass
    found = (path for pattern in patterns for path in sorted(folder.glob(pattern)) if not path.is_dir())
    return (path for path in found if path.name != f"{PROBES}.csv" and not path.name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def _copy(source: Path, copy: Path) -> Path:
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    return copy
