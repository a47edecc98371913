"""What a benchmark says: a table on the screen, and the same as CSV and JSON with every sample.

    report("optimizer_step", lines, about, reference=("torch AdamW, fused", "bf16"), device="cpu", out=folder)

A ratio is the median over rounds of the ratio to the reference in the same round, with its quartiles: what slows the
machine for a while slows both.
"""

from __future__ import annotations

import csv
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mpadam.atomic import write_json
from mpadam.machine import installed
from mpadam.measure.step_time import device_name

PACKAGES = ("torch", "transformers", "torchao", "torch-optimi")


@dataclass(frozen=True)
class Line:
    """One thing that was measured: a sample a round, in the unit of the report. bytes: that it has to move, if known.

    variant: for an optimizer, how its weights are kept.  first: seconds of the first, with what it compiles, if known.
    """

    name: str
    variant: str
    samples: tuple[float, ...]
    bytes: int | None = None
    first: float | None = None


def report(
    benchmark: str,
    lines: Sequence[Line],
    about: Mapping[str, Any],
    *,
    reference: tuple[str, str],
    device: str,
    out: Path,
    unit: str = "ms",
    scale: float = 1e3,
    bandwidth: float | None = None,
) -> list[dict[str, Any]]:
    """Print and write; returns the rows.

    reference: name and variant of the line that ratios are to.  scale: from the samples' unit to `unit`.
    bandwidth: bytes per second that the device copies, for the share of it that a line reaches.
    """
    told = {**about, **circumstances(device)}
    base = next((line for line in lines if (line.name, line.variant) == reference), None)
    rows = [_row(line, base, scale, bandwidth) for line in lines]
    samples = [{"name": line.name, "variant": line.variant, "samples": line.samples} for line in lines]
    publish(benchmark, told, (_header(unit), *map(_cells, rows)), rows, out=out, unit=unit, samples=samples)
    return rows


def publish(
    benchmark: str,
    about: Mapping[str, Any],
    table: Sequence[Sequence[str]],
    rows: Sequence[Mapping[str, Any]],
    *,
    out: Path,
    **kept: Any,
) -> None:
    """Print what a measurement is about and its table, whose first line is the header, as Markdown; write the rows as
    CSV, and all of it with what else is kept as JSON, into the folder `out`."""
    print(f"{benchmark}: " + ", ".join(f"{key} {value}" for key, value in about.items()))
    header, *lines = table
    print("\n".join("| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header), *lines)))
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{benchmark}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write_json(out / f"{benchmark}.json", {"about": dict(about), "rows": rows, **kept})


def circumstances(device: str) -> dict[str, Any]:
    """Versions, device, threads, and how many processes wanted the processors in the last minute."""
    versions = {name: installed(name) for name in PACKAGES}
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version for name, version in versions.items() if version},
        "load": round(os.getloadavg()[0], 1),
        "processors": os.cpu_count(),
    }


def _row(line: Line, base: Line | None, scale: float, bandwidth: float | None) -> dict[str, Any]:
    low, middle, high = (scale * value for value in quartiles(line.samples))
    row: dict[str, Any] = {"name": line.name, "variant": line.variant, "n": len(line.samples)}
    row |= {"median": middle, "lower_quartile": low, "upper_quartile": high, "smallest": scale * min(line.samples)}
    if base is not None:
        ratios = [own / other for own, other in zip(line.samples, base.samples, strict=True)]
        row |= dict(zip(("ratio_lower_quartile", "ratio", "ratio_upper_quartile"), quartiles(ratios), strict=True))
    row["first_s"] = line.first
    row["gigabytes_per_s"] = line.bytes / statistics.median(line.samples) / 1e9 if line.bytes else None
    if bandwidth is not None:
        row["share_of_copy"] = 1e9 * row["gigabytes_per_s"] / bandwidth if line.bytes else None
    return row


def _header(unit: str) -> tuple[str, ...]:
    return ("", "", f"median, {unit}", "quartiles", "smallest", "ratio", "quartiles", "GB/s", "of copy", "first, s")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    ratio = ("", "")
    if "ratio" in row:
        ratio = (f"{row['ratio']:.2f}", f"{row['ratio_lower_quartile']:.2f}–{row['ratio_upper_quartile']:.2f}")
    moved, share = row["gigabytes_per_s"], row.get("share_of_copy")
    spread = f"{row['lower_quartile']:.4g}–{row['upper_quartile']:.4g}"
    reached = ("" if moved is None else f"{moved:.1f}", "" if share is None else f"{share:.0%}")
    first = "" if row["first_s"] is None else f"{row['first_s']:.3g}"
    return (
        row["name"],
        row["variant"],
        f"{row['median']:.4g}",
        spread,
        f"{row['smallest']:.4g}",
        *ratio,
        *reached,
        first,
    )


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; all equal where there is one sample."""
    if len(samples) == 1:
        return (samples[0],) * 3
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, statistics.median(samples), high
