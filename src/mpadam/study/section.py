"""What the sections of the configuration are made of: strict models, the types that several of them use, and what
pydantic finds wrong with them in one line.

`Options` and `Kinds` are for what the workflow makes besides trainings: a section with a dataclass for each kind. A
study's configuration overrides single fields; rules hand over all of them as canonical JSON, so what they make is made
again when, and only when, a value changes.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from mpadam.canonical import canonical_json


def first_fault(error: ValidationError, *, root: str = "") -> str:
    """`grids.0.seeds: Input should be a valid list, but it is "all"`.

    root: where the faulty content is, as the beginning of a dotted name.
    """
    return fault(dict(error.errors()[0]), root=root)


def fault(found: dict[str, Any], *, root: str = "") -> str:
    where = ".".join(filter(None, [root, *map(str, found["loc"])]))
    message = str(found["ctx"]["error"]) if found["type"] == "value_error" else found["msg"]
    value = "" if found["type"] in ("missing", "value_error") else f", but it is {short(found['input'])}"
    return f"{where}: {message}{value}" if where else f"{message}{value}"


def short(value: Any, longest: int = 60) -> str:
    """A value as JSON, cut to so many characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= longest else text[: longest - 3] + "..."


# --- sections ---------------------------------------------------------------------------------------------------------


class Section(BaseModel):
    """A part of the configuration: immutable, unknown keys refused, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, content: Any) -> Any:
        """Refuse true and false where a number is wanted: Python would take them for 1 and 0."""
        for key in _numbers_of(cls) & content.keys() if isinstance(content, dict) else ():
            if any(isinstance(part, bool) for part in _parts(content[key])):
                found = json.dumps(content[key])
                raise ValueError(f"{key}: {found} is no number (YAML reads yes, no, on, off so); give a number")
        return content


class GrownSection(Section):
    """A section whose fields `added` came after the first runs: while one has its default, which says what runs did
    before, it enters neither run.yaml nor the hash."""

    added: ClassVar[frozenset[str]]

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unused = {key for key in self.added if getattr(self, key) == type(self).model_fields[key].default}
        return {key: value for key, value in handler(self).items() if key not in unused}


@cache
def _numbers_of(section: type[BaseModel]) -> frozenset[str]:
    """Fields that hold numbers, or lists or mappings of them, and no switches."""
    kinds = {name: set(_kinds(field.annotation)) for name, field in section.model_fields.items()}
    return frozenset(name for name, found in kinds.items() if found & {int, float} and bool not in found)


def _parts(value: Any) -> Iterator[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    yield from [value] if inner is None else (part for one in inner for part in _parts(one))


def _kinds(annotation: Any) -> Iterator[Any]:
    yield get_origin(annotation) or annotation
    for argument in get_args(annotation):
        yield from _kinds(argument)


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


# --- sections of what is made besides trainings -----------------------------------------------------------------------


class Options:
    """Base of these dataclasses: unknown keys and infinite numbers are refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


class Kinds(Options):
    """Base of a section, which has a field for each kind; what is left out takes its default."""

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds, as the command line names them."""
        return tuple(name.replace("_", "-") for name in vars(self))

    def text(self, kind: str) -> str:
        """All options of one kind as canonical JSON, defaults too: the parameter of its rule."""
        return canonical_json(asdict(getattr(self, kind.replace("-", "_"))))

    def parsed(self, kind: str, text: str) -> Any:
        """The options of a kind from JSON; fields left out take their defaults.

        Raises ValueError with key, value and remedy for unknown fields and for values that make no sense.
        """
        defaults = getattr(self, kind.replace("-", "_"))
        try:
            return TypeAdapter(type(defaults)).validate_json(text)
        except ValidationError as error:
            known = ", ".join(field.name for field in fields(defaults)) or "none"
            raise ValueError(f"{first_fault(error, root=kind)}; its options are {known}") from None
