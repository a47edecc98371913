"""Exhibits made in a test: of a study that was collected, or of records in a folder."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mpadam.analysis.collect import Collected
from mpadam.exhibits.kit.pictures import drawing
from mpadam.exhibits.source import Source, source_of


def maker(module: str) -> Callable[..., Any]:
    """Makes the exhibit of a module of `mpadam.exhibits` from a collected study."""

    def make(study: Collected, *key: str) -> Any:
        with drawing():
            return import_module(f"mpadam.exhibits.{module}").make(source_of(study), *key)

    return make


def from_folder(module: str, folder: Path, *key: str) -> Any:
    """The exhibit of a module from the records in a folder."""
    with drawing():
        return import_module(f"mpadam.exhibits.{module}").make(Source(folder), *key)
