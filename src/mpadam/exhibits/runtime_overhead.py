"""The tables of the measurements: runtime overhead, and memory with Apollo-E."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.tables import Entry, Table
from mpadam.measure.memory import Footprint
from mpadam.measure.options import StepTime
from mpadam.measure.step_time import Timing
from mpadam.measure.subjects import TORCH_FUSED

_SCALE = 1e3  # seconds to milliseconds


def step_time_table(options: StepTime, timings: Sequence[Timing], about: Mapping[str, Any]) -> Table:
    """A row an optimizer, a column a way to keep weights, and bf16 against AdamW and torch's fused AdamW."""
    by_key = {(t.name, t.masters): t for t in timings}
    names = list(dict.fromkeys(t.name for t in timings))
    styles = optimizer_styles(name for name in names if name in options.optimizers)
    labels = {name: style.label for name, style in styles.items()} | {n: n for n in names if n not in styles}
    references = (by_key.get((BASELINE, "bf16")), by_key.get((TORCH_FUSED, "bf16")))
    rows = []
    for name, label in labels.items():
        own = [by_key.get((name, masters)) for masters in options.masters]
        bf16 = by_key.get((name, "bf16"))
        texts = [*map(_time_text, own), *(_ratio_text(bf16, reference) for reference in references)]
        rows.append(tuple(map(Entry, (label, *texts))))
    return Table(
        name="runtime-overhead",
        title="Runtime overhead: time of an optimizer step",
        caption=(
            f"Milliseconds of one step over {about['parameters']:,} bf16 parameters and gradients: median of "
            f"n = {options.rounds} samples (lower to upper quartile), a sample being the mean of {options.steps} "
            "steps; columns say how weights are kept. Last columns: the bf16 median over that of AdamW here and of "
            "torch's fused AdamW. Optimizers were visited in turn, in one process. Small matrices show the cost of a "
            "call as much as of the arithmetic: compare within this table only."
        ),
        header=("optimizer", *(f"{m} ms" for m in options.masters), "bf16 / AdamW", "bf16 / torch fused"),
        rows=tuple(rows),
        headings=1,
        data=_timing_frame(timings, options),
        notes=_circumstances(options, about),
    )


def _time_text(timing: Timing | None) -> str:
    if timing is None:
        return ""
    median, low, high = (_SCALE * seconds for seconds in (timing.median, *timing.quartiles))
    digits = 2 if median >= 1 else 3
    return f"{median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _ratio_text(timing: Timing | None, reference: Timing | None) -> str:
    return "" if timing is None or reference is None else f"{timing.median / reference.median:.2f}"


def _timing_frame(timings: Sequence[Timing], options: StepTime) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "optimizer": timing.name,
            "masters": timing.masters,
            "n": len(timing.samples),
            "milliseconds_median": _SCALE * timing.median,
            "milliseconds_lower_quartile": _SCALE * timing.quartiles[0],
            "milliseconds_upper_quartile": _SCALE * timing.quartiles[1],
            "compile": options.compile,
        }
        for timing in timings
    )


def _circumstances(options: StepTime, about: Mapping[str, Any]) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    threads = "" if about["threads"] is None else f", {about['threads']} thread{'s' * (about['threads'] > 1)}"
    told = [f"{about['device']}{threads}; {versions}; torch.compile {'on' if options.compile else 'off'}."]
    if about["absent"]:
        told.append(f"Not installed where this was measured: {', '.join(about['absent'])}.")
    return tuple(told)


# --- memory ----------------------------------------------------------------------------------------------------------


def memory_table(footprints: Sequence[Footprint]) -> Table:
    """A row a size and optimizer: bytes a parameter, what they are above AdamW, and the whole in gigabytes."""
    baseline = {f.size: f.bytes.states for f in footprints if f.optimizer == BASELINE and f.masters == "bf16"}
    rows = []
    for found in footprints:
        above = found.bytes.states - baseline[found.size]
        rows.append(
            (
                *(Entry(text) for text in (found.size, found.label)),
                *(Entry(f"{value:.2f}") for value in (found.bytes.weight + found.bytes.compute_copy,)),
                *(Entry(f"{value:.2f}") for value in (found.bytes.gradient, found.bytes.states)),
                Entry("–" if found.masters == "fp32" else f"{above:+.3f}"),
                Entry(f"{found.bytes.total:.2f}"),
                Entry(f"{found.bytes.total * found.parameters / 1e9:.2f}"),
            )
        )
    return Table(
        name="memory",
        title="Memory of optimizers, with Apollo-E",
        caption=(
            "Bytes a parameter, counted from the tensors that the optimizer really holds for the shapes of the paper's "
            "LLaMAs: bf16 weights, gradients and states, and for comparison AdamW with fp32 masters and fp32 states. "
            "Apollo-E keeps a rank-4 compression of M+Adam's second state: of attention and MLP projections, or of "
            "embedding and head too (all matrices). The paper's footprint for Apollo-E is quoted as 0.4 to 0.8 bytes a "
            "parameter above AdamW; with embedding and head left whole it depends on the size of the model. "
            "Activations are not counted."
        ),
        header=(
            *("model", "optimizer", "weights", "gradients", "states", "states above AdamW"),
            *("total", "total, GB"),
        ),
        rows=tuple(rows),
        headings=2,
        data=pd.DataFrame(_memory_row(found, baseline[found.size]) for found in footprints),
    )


def _memory_row(found: Footprint, baseline: float) -> dict[str, object]:
    return {
        "model": found.size,
        "parameters": found.parameters,
        "optimizer": found.optimizer,
        "masters": found.masters,
        "apollo_scope": found.scope,
        **{f"{name}_bytes": value for name, value in found.bytes._asdict().items()},
        "total_bytes": found.bytes.total,
        "states_above_adamw": found.bytes.states - baseline,
    }
