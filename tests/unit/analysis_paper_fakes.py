"""A made-up study with everything that `all_paper` shows: write-backs, forms, levels, several regimes and budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis_fakes import FakeStudy, fake_study

from mpadam.analysis.collect import Collected, collect

REGIMES = {
    f"{masters}-{compute}": {"masters": masters, "compute": compute}
    for masters in ("fp32", "bf16", "fp8", "nvfp4")
    for compute in ("bf16", "fp8")
}
WRITE_BACKS = ("adamw-sr", "adamw-kahan", "m-plus-adam-sr", "m-plus-adam-kahan")
FORMS = ("m-plus-adam-relative", "m-plus-adam-apollo-e", "additive-twin")
LEVELS: dict[str, dict[str, Any]] = {
    "m-plus-adam@beta2_0": {"values": {"beta2": 0.9}},
    "m-plus-adam@beta2_1": {"values": {"beta2": 0.999}},
    "m-plus-adam@clip0": {"values": {"max_relative_step": None}},
    "m-plus-adam@lr0": {"values": {"lr": 1e-4}},
    "m-plus-adam@warmup0": {"warmup": 0.0},
    "adamw@betas0": {"values": {"beta1": 0.9, "beta2": 0.95}},
}
MAIN = {
    "adamw": {"values": {"weight_decay": 0.1}, "search": {"lr": [1e-3, 3e-3, 1e-2]}},
    "m-plus-adam": {"search": {"lr": [1e-3, 3e-3, 1e-2], "lr_mult": [4e-3]}},
}
TAKES = {entry: "adamw" if entry.startswith("adamw") else "m-plus-adam" for entry in (*WRITE_BACKS, *FORMS, *LEVELS)}
CONTENT: dict[str, Any] = {
    "regimes": REGIMES,
    "optimizers": MAIN | {entry: {} for entry in (*WRITE_BACKS, *FORMS)} | LEVELS,
    "tuning": {"mode": "search", "trials": 3, "transfer": {"optimizers": TAKES, "regimes": {"nvfp4-fp8": "fp8-fp8"}}},
    "grids": [
        {"name": "main", "regimes": [r for r in REGIMES if r != "nvfp4-bf16"], "optimizers": list(MAIN)},
        {"name": "sr", "target": "all_paper", "regimes": ["bf16-bf16"], "optimizers": ["adamw-sr"]},
        {
            **{"name": "write-backs", "target": "all_paper", "models": ["tiny"], "budgets": [1]},
            **{"regimes": ["bf16-bf16", "fp8-fp8"], "optimizers": list(WRITE_BACKS)},
        },
        {
            **{"name": "ablations", "target": "all_paper", "models": ["tiny"], "budgets": [1], "seeds": [0]},
            **{"regimes": ["bf16-bf16"], "optimizers": [*FORMS, *LEVELS]},
        },
    ],
}
#: where write-backs, forms and levels are
PLACE: dict[str, Any] = {"model": "tiny", "budget": 1, "regime": "bf16-bf16"}


def paper_study(results: Path, **changes: Any) -> FakeStudy:
    """That study at `results`, every run completed."""
    study = fake_study(results, **{**CONTENT, **changes})
    return replace(study, paths=replace(study.paths, view="paper"))


def collected(study: FakeStudy) -> Collected:
    return collect(study.config, study.paths)
