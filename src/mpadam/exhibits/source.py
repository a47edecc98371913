"""What an exhibit is made of: a folder of results, read as far as it is asked for."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from mpadam.analysis.collect import Collected, read_collected
from mpadam.analysis.probes import Probes, read_probes
from mpadam.presence import is_there
from mpadam.study.load import ConfigError, load_study
from mpadam.study.paths import StudyPaths


@dataclass(frozen=True)
class Source:
    """The folder of a study's tables and figures, e.g. `results/smoke/paper`, and what lies in it."""

    folder: Path

    @cached_property
    def collected(self) -> Collected:
        """The study and its runs, as `mpadam aggregate` left them in study.yaml and tables/runs.csv."""
        config = load_study([self.folder / "study.yaml"])
        view = "paper" if self.folder.name == "paper" else ""
        root = self.folder.parent if view else self.folder
        return read_collected(config, StudyPaths(root.name, root.parent, view))

    @cached_property
    def probes(self) -> Probes:
        return read_probes(self.collected)

    def record(self, name: str) -> Any:
        """A JSON file in the folder. Raises ConfigError where it is not there or torn."""
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: not there; run what makes it first") from None
        except ValueError:
            raise ConfigError(f"{path}: not JSON; delete it and run what makes it again") from None

    def numbers(self, name: str) -> pd.DataFrame:
        """A CSV file in the folder. Raises ConfigError where it is not there."""
        path = self.folder / name
        if not is_there(path):
            raise ConfigError(f"{path}: not there; run what makes it first")
        return pd.read_csv(path)


def source_of(collected: Collected) -> Source:
    source = Source(collected.paths.output)
    source.__dict__["collected"] = collected  # where cached_property keeps it
    return source
