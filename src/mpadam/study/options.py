"""Options of what the workflow makes beside trainings: a section of the configuration, with a dataclass for each kind.

A study's configuration overrides single fields; rules hand over all of them as canonical JSON, so what they make is
made again when, and only when, a value changes.
"""

from dataclasses import asdict, fields
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from mpadam.canonical import canonical_json
from mpadam.study.faults import first_fault


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
