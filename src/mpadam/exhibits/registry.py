"""Every exhibit of the package, found by reading its modules, not by running them: Snakemake asks while it plans.

An exhibit is a module of `mpadam.exhibits` with

    NAME        of its files; with `{regime}` or `{figure}` in it one exhibit for each regime, or figure, of the study
    TITLE       of the table or figure, also in Snakemake's report, where its docstring stands below it
    NEEDS       "runs", "probes", "claims.json", "diagnostics/<kind>", "measure/<kind>.json", or "" for the code alone
    PLACE       on the page, from 1; without one it comes last, by name
    IN_ALL      whether `all` makes it too, not only `all_paper`; of runs and claims alone
    OF_LAYERS   whether it needs probes of each layer (`training.probe_layers`)
    CHECKED     file -> columns that must hold a finite number (CSV), or () for a record that must not be empty (JSON)
    make        (source) -> Table | Picture, which also says what it is; (source, regime) of one for each regime
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpadam.exhibits.kit.pictures import Picture
    from mpadam.exhibits.kit.table import Table
    from mpadam.exhibits.source import Source
    from mpadam.study.config import StudyConfig

SUFFIXES = {"tables": (".csv", ".md", ".tex", ".txt", ".json"), "figures": (".svg", ".pdf", ".png", ".json")}
_FOLDERS = {"Table": "tables", "Picture": "figures"}
_LAST = 1_000
#: NEEDS of what a report of updates has: probes, and Figure 1, which shows one update of each rule without training
OF_UPDATES = ("probes", "diagnostics/survival-grid")


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure. folder: "tables" or "figures".  about: the module's docstring.  key: which of a family."""

    module: str
    folder: str
    name: str
    title: str
    needs: str
    about: str
    place: int = _LAST
    in_all: bool = False
    of_layers: bool = False
    checked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    key: str | None = None

    @property
    def files(self) -> list[str]:
        """All its files, relative to the folder of results, without the CSV that a figure may have next to it."""
        return [f"{self.folder}/{self.name}{suffix}" for suffix in SUFFIXES[self.folder]]

    def make(self, source: Source) -> Table | Picture:
        made: Table | Picture = import_module(self.module).make(source, *([] if self.key is None else [self.key]))
        return made


def exhibits(config: StudyConfig, view: str = "paper") -> list[Exhibit]:
    """What the targets make of a study, in the order of its page: "paper" for `all_paper`, "" for `all`."""
    found = [one for exhibit in _found() for one in _members(exhibit, config) if view or exhibit.in_all]
    return sorted(found, key=lambda exhibit: (exhibit.place, exhibit.name))


def needing(needs: str, config: StudyConfig, view: str = "paper") -> list[Exhibit]:
    return [exhibit for exhibit in exhibits(config, view) if exhibit.needs == needs]


def of_record(needs: str, figures: Sequence[str] = ()) -> list[Exhibit]:
    """Those that are made of a record without a study; figures: of the dataflow, as its options name them."""
    found = [exhibit for exhibit in _found() if exhibit.needs == needs]
    return [
        one
        for exhibit in found
        for one in ([_member(exhibit, "figure", key) for key in figures] if "{figure}" in exhibit.name else [exhibit])
    ]


def find(stem: str) -> Exhibit:
    """The exhibit with these files, e.g. `tables/table2`. Raises ValueError where there is none."""
    folder, _, name = stem.partition("/")
    found = [exhibit for exhibit in _found() if exhibit.folder == folder]
    for exhibit in sorted(found, key=_openness):
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(exhibit.name))
        if (parts := re.fullmatch(pattern, name)) is not None:
            return next((_member(exhibit, axis, key) for axis, key in parts.groupdict().items()), exhibit)
    known = ", ".join(f"{exhibit.folder}/{exhibit.name}" for exhibit in _found())
    raise ValueError(f"{stem}: no such table or figure; there are {known}")


def _openness(exhibit: Exhibit) -> tuple[bool, int]:
    """Exhibits with a name of their own come first, then families, those that fix most of the name first."""
    return "{" in exhibit.name, -len(exhibit.name.partition("{")[0])


def places() -> dict[tuple[str, str], int]:
    """(folder, name) -> place on the page, of the exhibits that have one."""
    return {(exhibit.folder, exhibit.name): exhibit.place for exhibit in _found() if exhibit.place < _LAST}


def _members(exhibit: Exhibit, config: StudyConfig) -> list[Exhibit]:
    """The exhibit; of a family one for each member that the study has; none that the study does not ask for."""
    if not _is_asked_for(exhibit, config):
        return []
    for axis, keys in _AXES.items():
        if f"{{{axis}}}" in exhibit.name:
            return [_member(exhibit, axis, key) for key in keys(config)]
    return [exhibit]


def _is_asked_for(exhibit: Exhibit, config: StudyConfig) -> bool:
    """Of probes, where the study has them; where the report is about updates, of what shows them alone."""
    if config.report == "updates" and exhibit.needs not in OF_UPDATES:
        return False
    probes = config.training.probe_every is not None
    return exhibit.needs != "probes" or (probes and (config.training.probe_layers or not exhibit.of_layers))


def _member(exhibit: Exhibit, axis: str, key: str) -> Exhibit:
    def filled(text: str) -> str:
        return text.replace(f"{{{axis}}}", key)

    checked = {filled(file): columns for file, columns in exhibit.checked.items()}
    return replace(exhibit, name=filled(exhibit.name), title=filled(exhibit.title), checked=checked, key=key)


def _regimes(config: StudyConfig) -> list[str]:
    from mpadam.study.grid import run_keys

    return list(dict.fromkeys(key.regime for key in run_keys(config)))


_AXES = {"regime": _regimes, "figure": lambda config: list(config.diagnostics.dataflow.figures)}


def _found() -> list[Exhibit]:
    """All of them, families as one."""
    folders = map(Path, import_module(__package__).__path__)
    paths = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    return [found for path in paths if (found := read_exhibit(path)) is not None]


@cache
def read_exhibit(path: Path) -> Exhibit | None:
    """The exhibit that a module is; None where it has no NAME. Raises ValueError where something of it lacks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    given = {
        statement.targets[0].id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    if "NAME" not in given:
        return None
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "make"]
    kind = made[0].returns.id if made and isinstance(made[0].returns, ast.Name) else ""
    values: dict[str, Any] = {
        name.lower(): ast.literal_eval(given[name])
        for name in ("NAME", "TITLE", "NEEDS", "PLACE", "IN_ALL", "OF_LAYERS", "CHECKED")
        if name in given
    }
    if kind not in _FOLDERS or not {"title", "needs"} <= values.keys():
        raise ValueError(f"{path}: an exhibit has TITLE, NEEDS and make(source) -> Table or Picture besides NAME")
    about = " ".join((ast.get_docstring(tree) or "").split())
    return Exhibit(f"{__package__}.{path.stem}", _FOLDERS[kind], about=about, **values)
