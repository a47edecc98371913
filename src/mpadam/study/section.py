"""What the sections of the configuration are made of: strict models, and the types that several of them use."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration: immutable, unknown keys refused, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


#: What models, regimes, optimizer entries, grids and studies may be called: their names become folders, wildcards of
#: the workflow and parts of file names, several of them in one.
NAME = "[a-z0-9][a-z0-9-]*(?:@[a-z][a-z0-9_-]*)?"
LONGEST_NAME = 64


def _path_name(name: str) -> str:
    if not re.fullmatch(NAME, name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"{name!r} cannot be a folder's name here: use lower-case letters, digits and '-', starting with a letter "
            f"or digit, at most {LONGEST_NAME} characters; '_' only after an '@'{_corrected(name)}"
        )
    return name


def _corrected(name: str) -> str:
    """The name with what is not allowed replaced or cut off, as a remedy; nothing where little is left."""
    base, _, level = name.lower().partition("@")
    parts = [re.sub("[^a-z0-9]+", "-", base).strip("-"), re.sub("[^a-z0-9_-]+", "_", level).lstrip("_-0123456789")]
    corrected = "@".join(filter(None, parts))[:LONGEST_NAME]
    return f"; write e.g.  {corrected}" if re.fullmatch(NAME, corrected) else ""


Name = Annotated[str, AfterValidator(_path_name)]


def _expanded(path: str) -> str:
    """The path with home and environment variables in place: once, so that jobs elsewhere get what was meant here.

    What comes out holds no `$`, so that expanding it again changes nothing.
    """
    home = re.sub("^~(?=/|$)", "${HOME}", path) if "HOME" in os.environ else path  # an empty HOME is no folder
    text = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: _variable(found[1] or found[2]), home)
    if text.startswith("~"):
        try:
            text = str(Path(text).expanduser())
        except RuntimeError:
            raise ValueError(f"{path}: there is no such user; write the path out, or  ./{path}") from None
    if held := sorted(set(text) & set("${}")):
        raise ValueError(f"{path}: a path cannot hold {held[0]!r} here, but for ${{VARIABLE}}; link it to one without")
    if not text:
        raise ValueError("the path is empty; write  .  for this folder, or leave the key out")
    return text


def _variable(name: str) -> str:
    if not (value := os.environ.get(name)):
        raise ValueError(f"the environment variable {name} is not set or empty; export it, or write the path out")
    return value


PathText = Annotated[str, AfterValidator(_expanded)]
PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
