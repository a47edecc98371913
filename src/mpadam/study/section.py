"""What the sections of the configuration are made of: strict models, and the types that several of them use."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration: immutable, unknown keys refused, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _path_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*(@[a-z][a-z0-9_-]*)?", name):
        raise ValueError(
            "names become folders: use lower-case letters, digits and '-', starting with a letter or digit"
        )
    return name


Name = Annotated[str, AfterValidator(_path_name)]


def _plain_words(value: object) -> object:
    """`--config` on Snakemake's command line hands over words where the file has numbers and booleans."""
    words = {"1": 1, "true": True, "True": True, "false": False, "False": False}
    return words.get(value, value) if isinstance(value, str) else value


PlainWords = BeforeValidator(_plain_words)
PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
