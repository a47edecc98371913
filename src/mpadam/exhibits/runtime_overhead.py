"""Time of one optimizer step, for each way to keep weights, next to torch's fused AdamW and, where installed, those of
torchao and optimi: median and quartiles, on the device that the notes name. The forward and backward pass, of which
a step is a small part, is not in it.
"""

from typing import Any

import numpy as np
import pandas as pd

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.style import optimizer_styles
from mpadam.exhibits.kit.table import Table, entries
from mpadam.exhibits.source import Source

NAME = "runtime-overhead"
TITLE = "Runtime overhead: time of an optimizer step"
NEEDS = "measure/step-time.json"
CHECKED = {"tables/runtime-overhead.csv": ("milliseconds_median",)}

TORCH_FUSED = "torch AdamW, fused"  # as `mpadam.measure.step_time` names it
Record = dict[Any, Any]


def make(source: Source) -> Table:
    kept = source.record(NEEDS)
    options, frame = kept["options"], _frame(kept)
    by_key = {(row["optimizer"], row["masters"]): row for row in frame.to_dict("records")}
    names = list(dict.fromkeys(frame["optimizer"]))
    styles = optimizer_styles(name for name in names if name in options["optimizers"])
    labels = {name: style.label for name, style in styles.items()} | {n: n for n in names if n not in styles}
    references = (by_key.get((BASELINE, "bf16")), by_key.get((TORCH_FUSED, "bf16")))
    rows = []
    for name, label in labels.items():
        own = [_time_text(by_key.get((name, masters))) for masters in options["masters"]]
        ratios = [_ratio_text(by_key.get((name, "bf16")), reference) for reference in references]
        rows.append(entries(label, *own, *ratios))
    return Table(
        NAME,
        TITLE,
        caption=(
            f"Milliseconds of one step over {kept['parameters']:,} bf16 parameters and gradients: median of "
            f"n = {options['rounds']} samples (lower to upper quartile), a sample being the mean of "
            f"{options['steps']} steps; columns say how weights are kept. Last columns: the bf16 median over that of "
            "AdamW here and of torch's fused AdamW. Optimizers were visited in turn, in one process. Small matrices "
            "show the cost of a call as much as of the arithmetic: compare within this table only."
        ),
        header=("optimizer", *(f"{m} ms" for m in options["masters"]), "bf16 / AdamW", "bf16 / torch fused"),
        rows=tuple(rows),
        headings=1,
        data=frame,
        notes=_circumstances(kept),
    )


def _frame(kept: Record) -> pd.DataFrame:
    """A row per optimizer and way to keep weights: median and quartiles of the samples, in milliseconds."""
    rows = []
    for timing in kept["seconds"]:
        low, median, high = 1e3 * np.quantile(timing["samples"], (0.25, 0.5, 0.75))
        names = (timing["name"], timing["masters"], len(timing["samples"]))
        rows.append((*names, median, low, high, kept["options"]["compile"]))
    numbers = [f"milliseconds_{name}" for name in ("median", "lower_quartile", "upper_quartile")]
    return pd.DataFrame(rows, columns=["optimizer", "masters", "n", *numbers, "compile"])


def _time_text(row: Record | None) -> str:
    if row is None:
        return ""
    median, low, high = (row[f"milliseconds_{name}"] for name in ("median", "lower_quartile", "upper_quartile"))
    digits = 2 if median >= 1 else 3
    return f"{median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _ratio_text(row: Record | None, reference: Record | None) -> str:
    if row is None or reference is None:
        return ""
    return f"{row['milliseconds_median'] / reference['milliseconds_median']:.2f}"


def _circumstances(kept: Record) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    threads = "" if kept["threads"] is None else f", {kept['threads']} thread{'s' * (kept['threads'] > 1)}"
    compiled = "on" if kept["options"]["compile"] else "off"
    told = [f"{kept['device']}{threads}; {versions}; torch.compile {compiled}."]
    if kept["absent"]:
        told.append(f"Not installed where this was measured: {', '.join(kept['absent'])}.")
    return tuple(told)
