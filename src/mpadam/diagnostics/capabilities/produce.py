"""From options to files: `produce(Capabilities(), Path("results/smoke"))`."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from mpadam.atomic import write_json
from mpadam.diagnostics.capabilities.measure import measure
from mpadam.diagnostics.capabilities.tidy import tidy
from mpadam.diagnostics.records import write_csv
from mpadam.optim.names import is_defined, parse_optimizer_name
from mpadam.study.diagnostics import Capabilities


def produce(options: Capabilities, root: Path) -> None:
    """Write diagnostics/capabilities/ under `root`: results.json, and the same as capabilities.csv."""
    found = [
        measure(fmt, optimizer, write_back, options)
        for fmt in options.formats
        for optimizer in options.optimizers
        for write_back in options.write_backs
        if is_defined(replace(parse_optimizer_name(optimizer), write_back=write_back))
    ]
    folder = root / "diagnostics" / "capabilities"
    records = {"options": json.loads(json.dumps(asdict(options))), "capabilities": [asdict(c) for c in found]}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", records)
    write_csv(tidy(records["capabilities"]), folder / "capabilities.csv")
