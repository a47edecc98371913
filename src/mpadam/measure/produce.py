"""From options to a record of numbers: `produce("step-time", StepTime(), Path("results/smoke/paper"))`."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mpadam.atomic import write_json
from mpadam.llama import PAPER_SIZES
from mpadam.measure.step_time import circumstances, measure_step_time
from mpadam.optim.memory import bytes_per_parameter
from mpadam.optim.memory_table import llama_parameters
from mpadam.optim.registry import build_optimizer
from mpadam.study.measure import Memory, StepTime

#: label, optimizer, masters, states, which matrices Apollo-E compresses
_SHOWN = (
    ("AdamW, fp32 masters and states", "adamw", "fp32", "fp32", "projections"),
    ("AdamW", "adamw", "bf16", "bf16", "projections"),
    ("AdamW + Kahan", "adamw-kahan", "bf16", "bf16", "projections"),
    ("M+Adam", "m-plus-adam", "bf16", "bf16", "projections"),
    ("M+Adam, Apollo-E", "m-plus-adam-apollo-e", "bf16", "bf16", "projections"),
    ("M+Adam, Apollo-E on all matrices", "m-plus-adam-apollo-e", "bf16", "bf16", "all_2d"),
)


def produce(kind: str, options: Any, root: Path) -> None:
    """Measure, and write <root>/measure/<kind>.json: the options, and every sample or footprint."""
    (root / "measure").mkdir(parents=True, exist_ok=True)
    write_json(root / "measure" / f"{kind}.json", {"options": asdict(options), **_MEASURES[kind](options)})


def _step_time(options: StepTime) -> dict[str, Any]:
    return {**circumstances(options), "seconds": [asdict(timing) for timing in measure_step_time(options)]}


def _memory(options: Memory) -> dict[str, Any]:
    return {"footprints": list(footprints(options))}


_MEASURES: dict[str, Callable[[Any], dict[str, Any]]] = {"step-time": _step_time, "memory": _memory}


def footprints(options: Memory) -> Iterator[dict[str, Any]]:
    """Bytes per parameter of every optimizer for each of the paper's LLaMAs, built over its shapes without allocating
    them."""
    for size in options.sizes:
        for label, optimizer, masters, states, scope in _SHOWN:
            model = llama_parameters(PAPER_SIZES[size])
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            built = build_optimizer(model, optimizer, {}, masters=masters, state_dtype=states, apollo_scope=scope)
            found = bytes_per_parameter(built)
            yield {
                **{"model": size, "label": label, "parameters": PAPER_SIZES[size].parameters()},
                **{"optimizer": optimizer, "masters": masters, "apollo_scope": scope},
                **{f"{name}_bytes": value for name, value in found._asdict().items()},
                "total_bytes": found.total,
            }
