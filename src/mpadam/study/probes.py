"""Names of what is made of a study's looks; without torch, for Snakemake asks while it plans."""

from __future__ import annotations

from mpadam.study.config import StudyConfig
from mpadam.study.grid import run_keys

FILE = "probes.jsonl"
TABLE = "probes"
DESCENT, STALENESS = "descent", "staleness"


def survival_figure(regime: str) -> str:
    """The figure of a regime."""
    return f"survival-{regime}"


def regimes_of(config: StudyConfig) -> list[str]:
    """Every regime that a run of the study has, in the grid's order."""
    return list(dict.fromkeys(key.regime for key in run_keys(config)))


def figures(config: StudyConfig) -> list[str]:
    """Names of all figures of a study; none where no update is looked at."""
    if config.training.probe_every is None:
        return []
    return [*map(survival_figure, regimes_of(config)), DESCENT, STALENESS]
