"""What the Snakefile asks of a study's exhibits: their files, what each is made of, and its words in the report."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mpadam.exhibits.registry import Exhibit, exhibits
from mpadam.imports import code_of
from mpadam.study.config import StudyConfig
from mpadam.study.diagnostics import KINDS

BATCH = "probes"  # exhibits that one job makes together, since reading every probe takes longer than drawing it
_RUNS = ("study.yaml", "tables/runs.csv")


@dataclass(frozen=True)
class Planned:
    """root: results/<study>.  all, paper: the study as its targets `all` and `all_paper` run it.
    selections: an input function, the files of the tunings that a view has."""

    root: str
    all: StudyConfig
    paper: StudyConfig
    selections: Callable[[Any], list[str]]

    @cached_property
    def views(self) -> dict[str, list[Exhibit]]:
        """By "" or "paper/", as Snakemake's wildcard has it."""
        return {"": exhibits(self.all, ""), "paper/": exhibits(self.paper, "paper")}

    def files(self, wildcards: Any) -> list[str]:
        found = self.views[wildcards.view]
        return [f"{self.root}/{wildcards.view}{file}" for exhibit in found for file in exhibit.files]

    def together(self) -> list[Exhibit]:
        return [exhibit for exhibit in self.views["paper/"] if exhibit.needs == BATCH]

    def diagnostics(self) -> list[str]:
        found = dict.fromkeys(exhibit.needs for exhibit in self.views["paper/"])
        return [kind for kind in KINDS if f"diagnostics/{kind}" in found]

    def names(self, folder: str) -> str:
        """A pattern for the names of tables, or figures, that are made one by one."""
        found = [exhibit for exhibit in self.views["paper/"] if exhibit.folder == folder and exhibit.needs != BATCH]
        return "|".join(re.escape(exhibit.name) for exhibit in found)

    def made_of(self, wildcards: Any) -> list[str]:
        needs, here = self._find(wildcards).needs, f"{self.root}/{wildcards.view}"
        if needs == "runs":
            runs = [here + name for name in _RUNS]
            return [*runs, f"{self.root}/data/manifest.json", *self.selections(wildcards)]
        return [here + needs] if needs else []

    def code(self, wildcards: Any) -> str:
        return code_of(self._find(wildcards).module, "mpadam.exhibits.write")

    def labels(self, wildcards: Any) -> dict[str, str]:
        found = self._find(wildcards)
        return {found.folder.removesuffix("s"): found.title}

    def about(self, wildcards: Any) -> str:
        return self._find(wildcards).about

    def _find(self, wildcards: Any) -> Exhibit:
        named = dict(wildcards.items())
        folder = "tables" if "table" in named else "figures"
        name = named["table" if folder == "tables" else "figure"]
        return next(e for e in self.views[named["view"]] if (e.folder, e.name) == (folder, name))
