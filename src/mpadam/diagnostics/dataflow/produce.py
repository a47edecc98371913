"""From options to files: `produce(Dataflow(), Path("results/smoke"))`."""

from dataclasses import asdict
from pathlib import Path

from mpadam.atomic import write_json
from mpadam.diagnostics.dataflow.trace import trace_step
from mpadam.study.diagnostics import Dataflow


def produce(options: Dataflow, root: Path) -> None:
    """Write diagnostics/dataflow/<figure>.json, what was seen, under `root`."""
    folder = root / "diagnostics" / "dataflow"
    folder.mkdir(parents=True, exist_ok=True)
    for name, regime in options.figures.items():
        trace = trace_step(options, regime)
        write_json(folder / f"{name}.json", {"regime": regime, **asdict(trace)})
