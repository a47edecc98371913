"""Which files a module of the package is made of: its own and those that it imports, read with `ast`, not run.

    code_of("mpadam.exhibits.figure4")      SHA-256 of analysis/cells.py, exhibits/figure4.py, ...

As a parameter of a rule it makes Snakemake run a job again when, and only when, code that the job uses changes. Imports
inside functions count; those for type checkers alone do not. A package's data files (YAML, templates) belong to its
modules.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mpadam.source import PACKAGE, SUFFIXES

_ROOT = PACKAGE.name
_TYPES = "TYPE_CHECKING"


@cache
def code_of(*modules: str) -> str:
    """SHA-256 over names and contents of the files behind these modules."""
    whole = hashlib.sha256()
    for path in files_of(*modules):
        whole.update(f"{_digest(path)}  {path.relative_to(PACKAGE).as_posix()}\n".encode())
    return whole.hexdigest()


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a source file, read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """Files that this one imports, or that lie in its package as data."""
    if path.suffix != ".py":
        return ()
    names = [name for node in _running(parsed(path)) for name in _names(node)]
    return (*(file for name in dict.fromkeys(names) for file in _files(name)), *_data_files(path.parent))


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a module, without those below `if TYPE_CHECKING`; expressions hold no imports."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, part, ()):
            if not (isinstance(inner, ast.If) and isinstance(inner.test, ast.Name) and inner.test.id == _TYPES):
                yield inner
                yield from _running(inner)


def _names(node: ast.AST) -> list[str]:
    """Names of modules, or of what is in them, that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


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
