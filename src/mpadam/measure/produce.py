"""From options to a record of numbers: `produce("step-time", StepTime(), Path("results/smoke/paper"))`."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpadam.atomic import write_json
from mpadam.measure.memory import footprints, record
from mpadam.measure.step_time import circumstances, measure_step_time
from mpadam.study.measure import Memory, StepTime


def produce(kind: str, options: Any, root: Path) -> None:
    """Measure, and write <root>/measure/<kind>.json: the options, and every sample or footprint."""
    (root / "measure").mkdir(parents=True, exist_ok=True)
    content = {"options": json.loads(json.dumps(asdict(options))), **_MEASURES[kind](options)}
    write_json(root / "measure" / f"{kind}.json", content)


def _step_time(options: StepTime) -> dict[str, Any]:
    timings = measure_step_time(options)
    return {**circumstances(options), "seconds": [asdict(timing) for timing in timings]}


def _memory(options: Memory) -> dict[str, Any]:
    return {"footprints": [record(found) for found in footprints(options)]}


_MEASURES: dict[str, Callable[[Any], dict[str, Any]]] = {"step-time": _step_time, "memory": _memory}
