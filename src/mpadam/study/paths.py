"""Where everything of a study lives. Floats never enter a path; a run's folder follows from its key."""

from dataclasses import dataclass
from pathlib import Path

from mpadam.study.grid import RunKey, TuningKey

PROBES = "probes"  #: name of the table of a study's probes


@dataclass(frozen=True)
class StudyPaths:
    """Folders and files under `results/<study>/`.

    view: "" or "paper"; what is made of the runs of `all_paper` lies apart from what is made of those of `all`.
    unpacked: where runs and trials are that the study's folder has in an archive (`study.archive.open_study`).
    """

    study: str
    results: Path = Path("results")
    view: str = ""
    unpacked: Path | None = None

    @property
    def root(self) -> Path:
        return self.results / self.study

    @property
    def records(self) -> Path:
        """The folder of runs/ and tuning/: the study's own, unless they are in an archive."""
        return self.unpacked or self.root

    @property
    def output(self) -> Path:
        """Tables, figures and the page."""
        return self.root / self.view

    @property
    def data(self) -> Path:
        """Tokenizer, token files and their manifest."""
        return self.root / "data"

    @property
    def manifest(self) -> Path:
        return self.data / "manifest.json"

    def run(self, key: RunKey) -> Path:
        return self.records / "runs" / key.model / f"{key.budget}x" / key.regime / key.optimizer / f"seed{key.seed}"

    def tuning(self, key: TuningKey) -> Path:
        return self.records / "tuning" / key.model / key.regime / key.optimizer

    def trial(self, key: TuningKey, trial: int) -> Path:
        return self.tuning(key) / f"trial{trial}"

    def extension(self, key: TuningKey) -> Path:
        """The record of the further trials of a tuning."""
        return self.tuning(key) / "extension.yaml"

    def selected(self, key: TuningKey) -> Path:
        return self.tuning(key) / "selected.yaml"
