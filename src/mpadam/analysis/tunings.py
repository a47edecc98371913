"""Which hyper-parameters each (model, regime, optimizer) was given, and how they were found."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpadam.presence import is_there, why_unreadable
from mpadam.study.config import StudyConfig
from mpadam.study.grid import TuningKey, trial_values
from mpadam.study.load import ConfigError, read_yaml
from mpadam.study.paths import StudyPaths
from mpadam.study.spec import tuning_identity
from mpadam.study.tuning import bracketed, trial_loss


@dataclass(frozen=True)
class Tuning:
    """What was chosen.

    status: "fixed" (the study gives the values), "selected" (the best of the trials), "diverged" (every trial did, the
        lowest rates were taken), "missing" (not chosen yet) or "refused" (`problem` says why).
    fixed, selected: hyper-parameter -> value, given by the study and found by the trials.
    bracketed: searched hyper-parameter -> whether the chosen one's neighbours on both sides were tried and are worse.
    trials: each with `values`, `status`, `val_loss`, `hash`, further ones (tuning.extend) also `why`; best: index of
        the chosen one.
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

    @property
    def listed(self) -> int:
        """How many trials the study lists, without the further ones."""
        return sum("why" not in trial for trial in self.trials)

    @property
    def sweep(self) -> Sweep | None:
        if not self.trials:
            return None
        perplexities = [trial_perplexity(trial) for trial in self.trials]
        return Sweep(len(perplexities), min(perplexities), statistics.median(perplexities))


@dataclass(frozen=True)
class Sweep:
    """Best and median validation perplexity of `n` trials, on the half that rates are chosen on; inf if diverged."""

    n: int
    best: float
    median: float


def trial_perplexity(trial: Mapping[str, Any]) -> float:
    """exp(loss) of a trial; infinity where it diverged, or where the number is too large to be one."""
    loss = trial_loss(trial)
    return math.exp(loss) if loss < math.log(1e300) else math.inf


def read_tuning(config: StudyConfig, paths: StudyPaths, key: TuningKey) -> Tuning:
    """The choice for `key`: from the configuration if nothing is searched, else from selected.yaml."""
    fixed = dict(config.optimizers[key.optimizer].values)
    if not tuning_identity(config, key):
        return Tuning(key, "fixed", fixed)
    path = paths.selected(key)
    try:
        if not is_there(path):
            return Tuning(key, "missing", fixed, problem="selected.yaml: not there yet")
        content = read_yaml(path)
        trials = tuple(content["trials"])
        if other := _other_than(config, key, content):
            return Tuning(key, "refused", fixed, problem=f"selected.yaml: stale: the study now {other}")
        if not content["values"].keys() == content["bracketed"].keys() == trials[content["best"]]["values"].keys():
            raise KeyError("a searched value without a choice, or without a word on its range")
        diverged = all(trial["status"] != "completed" for trial in trials)
        return Tuning(
            key,
            "diverged" if diverged else "selected",
            fixed,
            selected=content["values"],
            bracketed=bracketed(trials, trials[content["best"]]),
            trials=trials,
            best=content["best"],
        )
    except OSError as error:
        return Tuning(key, "refused", fixed, problem=why_unreadable(error))
    except (ConfigError, KeyError, IndexError, TypeError, AttributeError):
        return Tuning(
            key, "refused", fixed, problem="selected.yaml: not a selection; delete it and run the workflow again"
        )


def _other_than(config: StudyConfig, key: TuningKey, content: Mapping[str, Any]) -> str:
    """What the study asks of a tuning and its selected.yaml was not made of; empty where there is nothing."""
    listed = [trial["values"] for trial in content["trials"] if "why" not in trial]
    if listed != trial_values(config, key.optimizer):
        return "searches other values"
    allowed = content.get("further", {"allowed": 0})["allowed"]
    return "" if allowed == config.tuning.extend else f"allows {config.tuning.extend} further trials, not {allowed}"
