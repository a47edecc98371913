"""Reading configuration: YAML in, `StudyConfig` out, or one clear line that says what is wrong and how to write it.

Overlays are merged as Snakemake merges them: dictionaries deeply, everything else replaced.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from mpadam.study.config import StudyConfig


class ConfigError(ValueError):
    """The configuration is wrong. The message names key, value and remedy, in one line."""


class _Loader(yaml.SafeLoader):
    """YAML whose floats may lack a dot (`8e-5`), as in YAML 1.2, and whose keys may not repeat."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise ConfigError(f"key {key!r} stands twice in the mapping that starts at line {line}; keep one")
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads: text that it would take for a number stands in quotes."""


_FLOAT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)$")
for _either in (_Loader, _Dumper):
    _either.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def to_yaml(content: Mapping[str, Any]) -> str:
    """A mapping as YAML that `read_yaml` gives back as it was, in the order it has.

    A plain dump will not do: of 10,000 hashes of 16 hexadecimal digits, about 8 look like 5245e83287496749, which is
    a number, and infinite.
    """
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=120)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping (key: value), found a {type(content).__name__}")
    return content


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`: dictionaries deeply, everything else replaced."""
    merged = dict(base)
    for key, value in overlay.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def load_study(paths: Iterable[Path]) -> StudyConfig:
    """The study that these files, each over the ones before, describe."""
    content: dict[str, Any] = {}
    for path in paths:
        content = merge(content, read_yaml(path))
    return parse_study(content)


def parse_study(content: Mapping[str, Any]) -> StudyConfig:
    """Validate a merged configuration.

    Raises ConfigError for the first thing that is wrong.
    """
    try:
        return StudyConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_describe(error)) from None


def _describe(error: ValidationError) -> str:
    """One line for the most telling of pydantic's errors: a misspelt key explains a missing one."""
    errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    first = errors[0]
    location = [part for part in first["loc"] if not str(part).startswith(("function-", "literal[", "constrained-"))]
    key = ".".join(map(str, location)) or "config"
    kind = first["type"]
    if kind == "extra_forbidden":
        return _unknown_key(location, first["input"])
    if kind == "missing":
        return f"{key}: this key is required and missing"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        close = difflib.get_close_matches(str(first["input"]), allowed, n=1, cutoff=0.3) or allowed[:1]
        expected = first["ctx"]["expected"]
        return f"{key}: {first['input']!r} is not one of {expected}; write e.g.  {location[-1]}: {close[0]}"
    if kind == "string_type" and location and location[-1] == "[key]":
        return f"{key}: the name {first['input']!r} is not a string (YAML reads yes, no, on, off, numbers so); quote it"
    if kind == "value_error":
        message = str(first["ctx"]["error"])
        return message if key == "config" else f"{key}: {message}"
    return f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}, but it is {_short(first['input'])}"


def _unknown_key(location: list[Any], value: Any) -> str:
    known = _fields_at(location[:-1])
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    remedy = (
        f"did you mean {close[0]!r}? Write  {close[0]}: {_short(value)}"
        if close
        else f"known keys here: {', '.join(known)}"
    )
    return f"{'.'.join(map(str, location))}: unknown key {location[-1]!r}; {remedy}"


def _fields_at(location: Iterable[Any]) -> list[str]:
    """Field names of the section that `location` leads to."""
    here: type[BaseModel] = StudyConfig
    parts = iter(location)
    for part in parts:
        annotation = here.model_fields[part].annotation
        if get_origin(annotation) in (dict, list):
            next(parts)  # the key or index of one of its sections
        here = _section(annotation)
    return list(here.model_fields)


def _section(annotation: Any) -> type[BaseModel]:
    """The section inside `dict[Name, Section]`, `list[Section]`, `Section | None`."""
    found = [annotation]
    while not (isinstance(found[0], type) and issubclass(found[0], BaseModel)):
        found = [*found[1:], *get_args(found[0])]
    section: type[BaseModel] = found[0]
    return section


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
