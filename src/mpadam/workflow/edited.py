"""What a start of the workflow makes again though its file is there: summaries that were edited or whose records were,
and tables in which a run was refused.

Snakemake sees whether a file that it made is there, not what became of it since. Dates tell which files deserve a look,
so that a start of a large study costs a few calls of `stat` for each finished run, and reads little.
"""

from pathlib import Path

from mpadam.presence import is_there
from mpadam.study.run_folder import RunFolder, altered, edited_records, read_json


def is_edited(path: Path, *, checked: Path) -> bool:
    """Whether the summary in a run's folder is not what its training wrote, or not that of the records next to it.

    checked: a file that is made of the summary, which was looked at then.
    """
    folder = RunFolder(path)
    made = _date(folder.summary)
    suspect = max(_date(folder.metrics), _date(folder.probes)) >= made  # training writes the summary last
    if made == 0 or (made < _date(checked) and not suspect):
        return False
    try:
        summary = read_json(folder.summary)
        if summary is None or altered(folder, summary):
            return True
        return suspect and edited_records(folder, summary) is not None
    except PermissionError:
        return False  # another user's: said where it is needed


def shows_refused(table: Path) -> bool:
    """Whether a run was refused when `runs.csv` was written: it may be in order by now."""
    try:
        return is_there(table) and ",refused," in table.read_text(encoding="utf-8")
    except OSError:
        return False  # it cannot be read: said where it is needed


def _date(path: Path) -> int:
    """When a file was written, in nanoseconds; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
