"""From options to files: `produce(Capabilities(), Path("results/smoke"))`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from mpadam.analysis.render import write_table
from mpadam.atomic import write_json
from mpadam.diagnostics.capabilities.measure import measure
from mpadam.diagnostics.capabilities.table import table1, tidy, write_back_table
from mpadam.diagnostics.records import write_csv
from mpadam.study.diagnostics import Capabilities


def produce(options: Capabilities, root: Path) -> None:
    """Write diagnostics/capabilities/ and tables table1 and table1-write-backs under `root`."""
    found = [
        measure(fmt, optimizer, write_back, options)
        for fmt in options.formats
        for optimizer in options.optimizers
        for write_back in options.write_backs
    ]
    folder = root / "diagnostics" / "capabilities"
    write_csv(tidy(found), folder / "capabilities.csv")
    records = {"options": json.loads(json.dumps(asdict(options))), "capabilities": [asdict(c) for c in found]}
    write_json(folder / "results.json", records)
    for table in (table1(options, found), write_back_table(options, found)):
        write_table(table, root / "tables")
