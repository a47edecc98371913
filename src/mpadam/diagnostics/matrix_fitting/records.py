"""The numbers behind the figures in tidy form: a row an observation."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from mpadam.atomic import write_json
from mpadam.diagnostics.matrix_fitting.choose import Choice
from mpadam.diagnostics.matrix_fitting.fit import Sweep
from mpadam.diagnostics.matrix_fitting.tasks import TASKS
from mpadam.diagnostics.records import write_csv
from mpadam.study.diagnostics import MatrixFitting

POINTS_A_CURVE = 100


def every(options: MatrixFitting) -> int:
    """Updates between two points of a curve, in files and figures."""
    return max(1, options.steps // POINTS_A_CURVE)


def write_records(options: MatrixFitting, sweeps: Sequence[Sweep], choices: Sequence[Choice], folder: Path) -> None:
    """results.json (options, chosen rates, final errors), curves.csv, sweeps.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "results.json",
        {"options": json.loads(json.dumps(asdict(options))), "choices": _choices(options, choices)},
    )
    write_csv(curves(options, choices), folder / "curves.csv")
    write_csv(sweep_points(options, sweeps), folder / "sweeps.csv")


def curves(options: MatrixFitting, choices: Sequence[Choice]) -> pd.DataFrame:
    """The error after about a hundred of the updates, at the chosen rates, seeds reported on."""
    rows = []
    for choice in choices:
        for number, task in enumerate(TASKS):
            curve = choice.curve(number, options.seeds)[:: every(options)].tolist()
            for point, errors in enumerate(curve):
                rows += [
                    {
                        "task": task,
                        "method": choice.sweep.method,
                        "rates": choice.how,
                        "seed": seed,
                        "update": point * every(options),
                        "error": _finite(error),
                    }
                    for seed, error in enumerate(errors)
                ]
    return pd.DataFrame(rows)


def sweep_points(options: MatrixFitting, sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """The final error at every rate that was tried, seeds reported on."""
    rows = []
    for sweep in sweeps:
        for rates, by_task in zip(sweep.rates, sweep.final[:, :, : options.seeds].tolist(), strict=True):
            for task, errors in zip(TASKS, by_task, strict=True):
                rows += [
                    {
                        "task": task,
                        "method": sweep.method,
                        "lr": rates["lr"],
                        "lr_mult": rates.get("lr_mult"),
                        "seed": seed,
                        "error": _finite(error),
                    }
                    for seed, error in enumerate(errors)
                ]
    return pd.DataFrame(rows)


def _choices(options: MatrixFitting, choices: Sequence[Choice]) -> list[dict[str, object]]:
    return [
        {
            "method": choice.sweep.method,
            "rates": choice.how,
            "tasks": {
                task: {
                    **choice.rates(number),
                    "not_bracketed": choice.open_ends[number],
                    "final_errors": [_finite(e) for e in choice.final(number, options.seeds).tolist()],
                }
                for number, task in enumerate(TASKS)
            },
        }
        for choice in choices
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
