"""What a run folder says about its run, in lines to show. Nothing that is missing, torn or foreign is an error here.

A page must open for every run, above all for those that went wrong, so each file is read on its own and as far as it
goes. Long files are read at their ends only: a study has a thousand of them.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from mpadam.presence import is_there
from mpadam.study.load import ConfigError, read_yaml
from mpadam.study.run_folder import RunFolder, last_lines

LOG_LINES = 40
_END = 16_384  # bytes


def text_of(value: object) -> str:
    """A value as one would type it into a configuration."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return str(value)


def flat(content: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, text) of everything in nested dictionaries and lists; what is empty is left out."""
    if isinstance(content, Mapping):
        parts = {str(name): part for name, part in content.items()}
    elif isinstance(content, list) and any(isinstance(part, dict | list) for part in content):
        parts = {str(index): part for index, part in enumerate(content)}
    elif isinstance(content, list):
        parts = {}
        if content:
            yield prefix, ", ".join(map(text_of, content))
    else:
        parts = {}
        yield prefix, text_of(content)
    for name, part in parts.items():
        yield from flat(part, f"{prefix}.{name}" if prefix else name)


def specification(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides the run: as its summary has it, else as `run.yaml` asks for it; empty where neither is there."""
    if isinstance(spec := summary.get("spec"), dict):
        return spec
    try:
        spec = read_yaml(folder.run_file).get("spec") if is_there(folder.run_file) else None
    except ConfigError:
        return {}
    return spec if isinstance(spec, dict) else {}


def log_tail(folder: RunFolder) -> str:
    return "\n".join(last_lines(folder.log, window=_END)[-LOG_LINES:])


def first_and_last(folder: RunFolder) -> list[tuple[int, float]]:
    """(step, training loss) of the first and the last logged step; empty where none was logged."""
    if not is_there(folder.metrics):
        return []
    with folder.metrics.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    lines = (first, *last_lines(folder.metrics, window=_END)[-1:])
    return [found for line in lines if (found := point(line)) is not None]


def point(line: str) -> tuple[int, float] | None:
    """(step, training loss) of a line of metrics; None where it has none that is finite."""
    try:
        record = json.loads(line)
        step, loss = int(record["step"]), float(record["loss"])
    except (ValueError, KeyError, TypeError):
        return None
    return (step, loss) if math.isfinite(loss) else None
