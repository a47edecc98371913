"""Which hyper-parameters each (model, regime, optimizer) was given, and how they were found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpadam.study.config import StudyConfig
from mpadam.study.grid import TuningKey, trial_values
from mpadam.study.load import ConfigError, read_yaml
from mpadam.study.paths import StudyPaths
from mpadam.study.spec import tuning_identity


@dataclass(frozen=True)
class Tuning:
    """What was chosen.

    status: "fixed" (the study gives the values), "selected" (the best of the trials), "diverged" (every trial did, the
        lowest rates were taken), "missing" (not chosen yet) or "refused" (`problem` says why).
    fixed, selected: hyper-parameter -> value, given by the study and found by the trials.
    bracketed: searched hyper-parameter -> whether smaller and larger values than the chosen one were tried.
    trials: each with `values`, `status`, `val_loss`, `hash`; best: index of the chosen one.
    """

    key: TuningKey
    status: str
    fixed: Mapping[str, float | None] = field(default_factory=dict)
    selected: Mapping[str, float] = field(default_factory=dict)
    bracketed: Mapping[str, bool] = field(default_factory=dict)
    trials: tuple[Mapping[str, Any], ...] = ()
    best: int | None = None
    problem: str = ""

    @property
    def values(self) -> dict[str, float | None]:
        """All values that the study or its trials decided; the rest are the optimizer's defaults."""
        return {**self.fixed, **self.selected}


def read_tuning(config: StudyConfig, paths: StudyPaths, key: TuningKey) -> Tuning:
    """The choice for `key`: from the configuration if nothing is searched, else from selected.yaml."""
    fixed = dict(config.optimizers[key.optimizer].values)
    if not tuning_identity(config, key):
        return Tuning(key, "fixed", fixed)
    path = paths.selected(key)
    if not path.exists():
        return Tuning(key, "missing", fixed, problem="selected.yaml: not there yet")
    try:
        content = read_yaml(path)
        trials = tuple(content["trials"])
        if [trial["values"] for trial in trials] != trial_values(config, key.optimizer):
            return Tuning(key, "refused", fixed, problem="selected.yaml: stale: the study now searches other values")
        diverged = all(trial["status"] != "completed" for trial in trials)
        return Tuning(
            key,
            "diverged" if diverged else "selected",
            fixed,
            selected=content["values"],
            bracketed=content["bracketed"],
            trials=trials,
            best=content["best"],
        )
    except (ConfigError, KeyError, TypeError):
        return Tuning(
            key, "refused", fixed, problem="selected.yaml: not a selection; delete it and run the workflow again"
        )
