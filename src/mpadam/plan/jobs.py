"""The trainings of a study, runs and tuning trials alike: where each has its folder, and what finished ones took, which
replaces the assumptions about runs of the same model and regime.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.presence import is_there
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey, run_keys, selection_key, trial_values, tuning_keys
from mpadam.study.paths import StudyPaths
from mpadam.study.run_folder import RunFolder, read_json, read_run
from mpadam.study.spec import tuning_identity


@dataclass(frozen=True)
class Training:
    """A run, or the trial of that number of a tuning."""

    key: RunKey | TuningKey
    trial: int | None = None

    @property
    def name(self) -> str:
        """`60m 1x bf16-bf16 adamw seed0`, `60m bf16-bf16 adamw trial3`."""
        key = self.key
        if isinstance(key, RunKey):
            return f"{key.model} {key.budget}x {key.regime} {key.optimizer} seed{key.seed}"
        return f"{key.model} {key.regime} {key.optimizer} trial{self.trial}"

    def folder(self, paths: StudyPaths) -> Path:
        if isinstance(self.key, RunKey):
            return paths.run(self.key)
        assert self.trial is not None
        return paths.trial(self.key, self.trial)


def runs(config: StudyConfig) -> list[Training]:
    return [Training(key) for key in run_keys(config)]


def trials(config: StudyConfig, tunings: list[TuningKey] | None = None) -> list[Training]:
    """All trials of the study, or of some of its tunings; a tuning that searches nothing has none."""
    keys = tuning_keys(config) if tunings is None else tunings
    return [
        Training(key, trial)
        for key in keys
        if tuning_identity(config, key)
        for trial in range(len(trial_values(config, key.optimizer)))
    ]


def further_trials(config: StudyConfig, paths: StudyPaths) -> list[Training]:
    """The further trials (tuning.extend) that have been begun."""
    allowed = range(config.tuning.trials, config.tuning.trials + config.tuning.extend)
    found = [Training(key, k) for key in tuning_keys(config) if tuning_identity(config, key) for k in allowed]
    return [training for training in found if is_there(training.folder(paths) / "run.yaml")]


def trials_for(config: StudyConfig, keys: list[RunKey]) -> list[Training]:
    """The trials that these runs wait for."""
    return trials(config, list(dict.fromkeys(selection_key(config, key) for key in keys)))


# --- finished ones ----------------------------------------------------------------------------------------------------


#: (model, regime)
Cell = tuple[str, str]


@dataclass(frozen=True)
class Observed:
    """Finished runs of one model and regime, trials and diverged ones among them.

    seconds: of one device (a GPU, a CPU thread), validations and checkpoints included, start-up not.
    """

    runs: int
    positions: int
    seconds: float

    @property
    def seconds_per_position(self) -> float:
        """Device seconds a training position."""
        return self.seconds / self.positions


def finished(trainings: Iterable[Training], paths: StudyPaths) -> dict[Training, dict[str, Any]]:
    """The summaries that there are and that belong to the run.yaml next to them."""
    found = {}
    for training in trainings:
        folder = RunFolder(training.folder(paths))
        summary = read_json(folder.summary)
        if summary is not None and summary.get("hash") == read_run(folder.run_file)[0]:
            found[training] = summary
    return found


def observe(config: StudyConfig, summaries: Iterable[Mapping[str, Any]]) -> dict[Cell, Observed]:
    """Speed by model and regime, from summaries made on the configured device with the model as it is configured."""
    cells: dict[Cell, Observed] = {}
    for summary in summaries:
        labels, spec = summary.get("labels", {}), summary.get("spec", {})
        if not _comparable(config, labels, spec) or not summary.get("positions") or not summary.get("seconds"):
            continue
        devices = spec["training"]["threads"] if config.training.device == "cpu" else summary.get("world_size", 1)
        cell = (labels["model"], labels["regime"])
        old = cells.get(cell, Observed(0, 0, 0.0))
        cells[cell] = Observed(
            old.runs + 1, old.positions + summary["positions"], old.seconds + devices * summary["seconds"]
        )
    return cells


def _comparable(config: StudyConfig, labels: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    model = config.models.get(labels.get("model", ""))
    if model is None or spec.get("training", {}).get("device") != config.training.device:
        return False
    return vars(model.size).items() <= spec.get("model", {}).items()
