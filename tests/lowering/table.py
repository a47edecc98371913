"""The kept table: kernels of a compiled step on a GPU, and the bytes that they read and write for each parameter."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from tests.lowering.cases import Case

FILE = Path(__file__).with_name("steps.csv")


def row(case: Case, kernels: int, bytes: float) -> dict[str, str]:
    return {
        "weights": case.weight_format,
        "write-back": case.write_back,
        "row": str(case.shape[1]),
        "kernels": str(kernels),
        "bytes": f"{bytes:.1f}",
    }


def kept() -> list[dict[str, str]]:
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def shown(page: str) -> list[dict[str, str]]:
    """The rows of the Markdown table on a page that has the columns of the kept one."""
    columns = list(kept()[0])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    start = lines.index(columns) + 2
    return [dict(zip(columns, cells, strict=True)) for cells in lines[start : start + len(kept())]]


def found(case: Case, seen: dict[str, Any]) -> dict[str, str]:
    return row(case, seen["kernels"], seen["bytes"])
