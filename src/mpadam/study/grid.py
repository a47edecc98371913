"""The grid of the study: which runs and which tuning trials it consists of, in a fixed order without duplicates."""

import itertools
import random
from dataclasses import dataclass

from mpadam.study.config import AXES, GridConfig, StudyConfig


@dataclass(frozen=True, order=True)
class TuningKey:
    """What is tuned together: one choice of rates."""

    model: str
    regime: str
    optimizer: str


@dataclass(frozen=True, order=True)
class RunKey:
    model: str
    budget: int
    regime: str
    optimizer: str
    seed: int


def run_keys(config: StudyConfig) -> list[RunKey]:
    """The union of all grids."""
    return list(dict.fromkeys(key for grid in config.grids for key in grid_keys(config, grid)))


def grid_keys(config: StudyConfig, grid: GridConfig) -> list[RunKey]:
    """The runs of one grid; an axis left out means all that the study declares."""
    return [RunKey(*key) for key in itertools.product(*(config.values_of(grid, axis) for axis in AXES))]


def selection_key(config: StudyConfig, run: RunKey | TuningKey) -> TuningKey:
    """Whose selected values a run uses: its own tuning, or the one it takes them from."""
    transfer = config.tuning.transfer
    return TuningKey(
        transfer.models.get(run.model, run.model),
        transfer.regimes.get(run.regime, run.regime),
        transfer.optimizers.get(run.optimizer, run.optimizer),
    )


def tuning_keys(config: StudyConfig) -> list[TuningKey]:
    return list(dict.fromkeys(selection_key(config, run) for run in run_keys(config)))


def trial_values(config: StudyConfig, optimizer: str) -> list[dict[str, float]]:
    """The searched values of each trial, `tuning.trials` of them for every optimizer that has a search.

    The whole product of the lists if it has that many points, else a sample of it that depends only on the entry and
    the tuning seed, and keeps every listed value in play as evenly as a shuffle does. An entry without a search has
    one trial, without values.
    """
    search = config.searched(optimizer)
    points = [dict(zip(search, values, strict=True)) for values in itertools.product(*search.values())]
    wanted = config.tuning.trials if search else 1
    if len(points) > wanted:
        chosen = set(random.Random(f"{config.tuning.seed}/{optimizer}").sample(range(len(points)), wanted))
        points = [point for index, point in enumerate(points) if index in chosen]
    return points
