"""Which files of a study let somebody else check its results: what runs and trials were, and what became of them.

Tables and figures are kept too, figures as SVG alone. Weights, token files, pages and the workflow's own logs stay
behind, and so does the long table of looks at updates: `mpadam probes` makes it of the runs' own lines, and `mpadam
site` the pages, with links to what is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from mpadam.presence import is_there
from mpadam.study.probes import TABLE as PROBES

_RUN = ("run.yaml", "summary.json", "metrics.jsonl", "environment.json")
_VIEWS = ("", "paper/")
#: below the study's folder
_PATTERNS = (
    *("study.yaml", "data/manifest.json", "data/tokenizer/*", "tuning/*/*/*/selected.yaml"),
    *(f"runs/*/*/*/*/*/{name}" for name in (*_RUN, "train.log", "loss.svg", "probes.jsonl")),
    *(f"tuning/*/*/*/trial*/{name}" for name in _RUN),
    "paper/diagnostics/**/*",
    *(f"{view}tables/*" for view in _VIEWS),
    *(f"{view}figures/*.{suffix}" for view in _VIEWS for suffix in ("svg", "json", "csv")),
    *(f"{view}claims.json" for view in _VIEWS),
)


def keep(study: Path, out: Path) -> list[Path]:
    """Copy those files from the folder of a study to a new folder; returns the copies.

    Raises ValueError if `study` is no study's folder with a result, or `out` is there already or inside it.
    """
    if not is_there(study / "data" / "manifest.json") or not any(study.glob("runs/*/*/*/*/*/summary.json")):
        raise ValueError(
            f"{study}: no folder of a study with results, which has data/manifest.json and runs/; see results/README.md"
        )
    if out.resolve().is_relative_to(study.resolve()):
        raise ValueError(f"{out}: lies inside {study}; name a folder outside")
    if is_there(out) and any(out.iterdir()):
        raise ValueError(f"{out}: is there already, and is not overwritten; delete it, or name another")
    return [_copy(path, out / path.relative_to(study)) for path in _files(study)]


def _files(study: Path) -> Iterator[Path]:
    for _ in os.walk(study, onerror=_raise):  # a pattern passes over folders that may not be read
        pass
    found = (path for pattern in _PATTERNS for path in sorted(study.glob(pattern)) if not path.is_dir())
    return (path for path in found if path.name != f"{PROBES}.csv")


def _raise(error: OSError) -> None:
    raise error


def _copy(source: Path, copy: Path) -> Path:
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    return copy
