"""What finished runs took: their summaries replace the assumptions about runs of the same model and regime."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mpadam.plan.jobs import Training
from mpadam.study.config import StudyConfig
from mpadam.study.paths import StudyPaths
from mpadam.study.run_folder import RunFolder, read_json, read_run

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
    """The summaries that there are and that belong to the run.yaml beside them."""
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
