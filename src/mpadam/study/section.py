"""What the sections of the configuration are made of: strict models, and the types that several of them use."""

from __future__ import annotations

import re
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
PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
