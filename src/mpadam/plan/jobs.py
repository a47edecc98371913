"""The trainings of a study, runs and tuning trials alike, and where each has its folder."""

from dataclasses import dataclass
from pathlib import Path

from mpadam.presence import is_there
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey, run_keys, selection_key, trial_values, tuning_keys
from mpadam.study.paths import StudyPaths
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
