"""From options to files: `produce("step-time", StepTime(), Path("results/smoke/paper"))`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpadam.analysis.render import write_table
from mpadam.analysis.tables import Table
from mpadam.atomic import write_json
from mpadam.measure.memory import footprints
from mpadam.measure.step_time import circumstances, measure_step_time
from mpadam.measure.tables import memory_table, step_time_table
from mpadam.study.measure import Memory, StepTime


def produce(kind: str, options: Any, root: Path) -> Table:
    """Measure, and write the table to <root>/tables and, of step times, every sample to <root>/measure."""
    table = _MAKERS[kind](options, root)
    write_table(table, root / "tables")
    return table


def _step_time(options: StepTime, root: Path) -> Table:
    timings, about = measure_step_time(options), circumstances(options)
    folder = root / "measure"
    folder.mkdir(parents=True, exist_ok=True)
    records = {"options": json.loads(json.dumps(asdict(options))), **about, "seconds": [asdict(t) for t in timings]}
    write_json(folder / "step-time.json", records)
    return step_time_table(options, timings, about)


def _memory(options: Memory, root: Path) -> Table:
    return memory_table(list(footprints(options)))


_MAKERS: dict[str, Callable[[Any, Path], Table]] = {"step-time": _step_time, "memory": _memory}
