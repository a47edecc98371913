"""Which files a module of the package is made of: its own and those that it imports, read from the text, not run.

    code_of("mpadam.exhibits.figure4")      SHA-256 of analysis/cells.py, exhibits/figure4.py, ...

As a parameter of a rule it makes Snakemake run a job again when, and only when, code that the job uses changes. Imports
inside functions count; those for type checkers alone do not. A package's data files (YAML, templates) belong to its
modules. Statements are matched as the project's formatter writes them, since parsing every file would take Snakemake
half a second each time it plans.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

from mpadam.source import PACKAGE, SUFFIXES
from mpadam.stored import checksums

_ROOT = PACKAGE.name
#: what holds no import that runs: strings of several lines, and blocks for type checkers
_NOT_RUN = re.compile(r'"""[\s\S]*?"""|^( *)if TYPE_CHECKING:\n(?:\1 +.*\n|\n)*', re.MULTILINE)
_IMPORT = re.compile(rf"^ *(?:from ({_ROOT}[\w.]*) import (\([^)]*\)|.*)|import ({_ROOT}[\w.]*))", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: as \w+)?,?(?: *#.*)?")


@cache
def code_of(*modules: str) -> str:
    """SHA-256 over names and contents of the files behind these modules."""
    named = ((path.relative_to(PACKAGE).as_posix(), path) for path in files_of(*modules))
    return hashlib.sha256(checksums(named).encode()).hexdigest()


def files_of(*modules: str) -> list[Path]:
    """The files behind these modules, sorted."""
    found: set[Path] = set()
    waiting = [path for module in modules for path in _files(module)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path)
    return sorted(found)


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """Files that this one imports, or that lie in its package as data."""
    if path.suffix != ".py":
        return ()
    names = imported_names(path.read_text(encoding="utf-8"))
    return (*(file for name in names for file in _files(name)), *_data_files(path.parent))


def imported_names(source: str) -> list[str]:
    """Dotted names of the package's modules, or of what is in them, that a source imports, each once."""
    found = _IMPORT.findall(_NOT_RUN.sub("", source))
    inside = [f"{module}.{name}" for module, names, _ in found for name in _NAME.findall(names)]
    return list(dict.fromkeys([*inside, *(module for *_, module in found if module)]))


@cache
def _files(name: str) -> tuple[Path, ...]:
    """Files of the package that run when this name is imported: the module, and the packages that it is in."""
    top, *parts = name.split(".")
    if top != _ROOT:
        return ()
    folders = [PACKAGE.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    candidates = [file for folder in folders for file in (folder / "__init__.py", folder.with_suffix(".py"))]
    return tuple(file for file in candidates if file.is_file())


@cache
def _data_files(folder: Path) -> tuple[Path, ...]:
    if folder == PACKAGE:
        return ()
    return tuple(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.suffix != ".py")
