"""Reading configuration: YAML in, `StudyConfig` out, or one clear line that says what is wrong and how to write it.

The workflow reads its files here too, so that they mean the same to Snakemake. Overlays are merged as Snakemake does:
dictionaries deeply, everything else replaced.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from mpadam.study.config import StudyConfig
from mpadam.study.section import fault, short


class ConfigError(ValueError):
    """The configuration is wrong. The message names key, value and remedy, in one line."""


_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML whose floats may lack a dot (`8e-5`), as in YAML 1.2, and whose keys may not repeat.

    Keys are compared before merge keys (`<<: *small`) are resolved, since a key may override a merged one.
    """

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        self._refuse_repeated_keys(node, set(), [])
        return node

    def _refuse_repeated_keys(self, node: Any, seen: set[int], around: list[Any]) -> None:
        if any(node is outer for outer in around):
            raise ConfigError(f"line {node.start_mark.line + 1}: this holds an alias of itself; write what is meant")
        if id(node) in seen:  # an anchored node is met again at each of its aliases
            return
        seen.add(id(node))
        lines: dict[Any, int] = {}
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            name, line = self._key(key), key.start_mark.line + 1
            if name in lines:
                where = f"on lines {lines[name]} and {line}" if lines[name] != line else f"on line {line}"
                raise ConfigError(f"key {name!r} is given twice, {where}; keep one")
            lines[name] = line
            self._refuse_repeated_keys(value, seen, [*around, node])
        for item in node.value if isinstance(node, yaml.SequenceNode) else ():
            self._refuse_repeated_keys(item, seen, [*around, node])

    def _key(self, node: yaml.Node) -> Any:
        """A key as Python compares it; one that is no scalar stands for itself, and is refused later."""
        if not isinstance(node, yaml.ScalarNode):
            return node
        return node.value if node.tag == _MERGE else self.construct_object(node)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what a mapping merges before its own keys, since the last of two equal keys counts.

        PyYAML 6.0.4 may lose a key by which a merged mapping overrides what it merges itself.
        """
        sources: list[Any] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                sources += value.value if isinstance(value, yaml.SequenceNode) else [value]
        node.value = [pair for pair in node.value if pair[0].tag != _MERGE]
        for source in sources:  # the first of several counts
            if not isinstance(source, yaml.MappingNode):
                raise ConfigError(
                    f"line {source.start_mark.line + 1}: << merges mappings (<<: *anchor), no {source.id}"
                )
            self.flatten_mapping(source)
            node.value = [*source.value, *node.value]


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    """A number in decimal digits. YAML 1.1 reads 010 as 8 and 1:30 as 90, which nobody means by them."""
    whole = node.tag.endswith(":int")
    number: float = loader.construct_yaml_int(node) if whole else loader.construct_yaml_float(node)
    if ":" in node.value or (whole and re.match("[-+]?0[0-9_]", node.value)):
        raise ConfigError(
            f"line {node.start_mark.line + 1}: YAML reads {node.value} as {number}; write {number}, or quote what is "
            "no number"
        )
    return number


def _refused(loader: _Loader, node: yaml.Node) -> None:
    loader.construct_undefined(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)
for _kind in ("set", "omap", "pairs", "binary"):  # a set has another order in each process
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _refused)


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
    """The mapping in a YAML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}; save it as UTF-8") from None
    content = parse_yaml(text, str(path))
    if content is None:
        raise ConfigError(f"{path}: is empty, as Snakemake refuses too; write  {{}}  for a file without entries")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping (key: value), found a {type(content).__name__}")
    return content


def read_words(words: Iterable[str]) -> dict[str, Any]:
    """The mapping that `--config key=value ...` of Snakemake's command line gives.

    Raises ConfigError for a key that is given twice.
    """
    content: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in content:
            raise ConfigError(f"--config: key {key!r} is given twice; keep one, or write  {key}={{a: 1, b: 2}}")
        content[key] = parse_yaml(value, f"--config {key}")
    return content


def parse_yaml(text: str, source: str) -> Any:
    """The content of a YAML document. JSON is one too, except that it may be indented with tabs."""
    try:
        json.loads(text)
        text = text.replace("\t", " ")
    except ValueError:
        pass
    try:
        return yaml.load(text, Loader=_Loader)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:  # PyYAML raises them all
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`: dictionaries deeply, everything else replaced."""
    merged = dict(base)
    for key, value in overlay.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def load_study(paths: Iterable[Path], words: Iterable[str] = ()) -> StudyConfig:
    """The study that these files, each over the ones before, and `--config key=value` over all of them describe."""
    content: dict[str, Any] = {}
    files = list(paths)
    for overlay in (*map(read_yaml, files), read_words(words)):
        content = merge(content, overlay)
    order = "; if {0} is an overlay, give the study that it changes first:  --config config.yaml --config {0}"
    return parse_study(content, alone=order.format(*files) if len(files) == 1 else "")


def parse_study(content: Mapping[str, Any], *, alone: str = "") -> StudyConfig:
    """Validate a merged configuration.

    alone: what to say of a missing key where there is one file only.
    Raises ConfigError for the first thing that is wrong.
    """
    try:
        return StudyConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_describe(error, alone)) from None


def _describe(error: ValidationError, alone: str) -> str:
    """One line for the most telling of pydantic's errors: a misspelt key explains a missing one."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    location = [part for part in first["loc"] if not str(part).startswith(("function-", "literal[", "constrained-"))]
    key = ".".join(map(str, location)) or "config"
    kind = first["type"]
    if kind == "extra_forbidden":
        return _unknown_key(location, first["input"])
    if kind == "missing":
        return f"{key}: this key is required and missing{alone}"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        close = difflib.get_close_matches(str(first["input"]), allowed, n=1, cutoff=0.3) or allowed[:1]
        expected = first["ctx"]["expected"]
        return f"{key}: {first['input']!r} is not one of {expected}; write e.g.  {location[-1]}: {close[0]}"
    if kind in ("string_type", "invalid_key"):
        return f"{key}: {first['input']!r} is not a string (YAML reads yes, no, on, off, null, numbers so); quote it"
    return fault({**first, "loc": location})


def _unknown_key(location: list[Any], value: Any) -> str:
    known = _fields_at(location[:-1])
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    remedy = (
        f"did you mean {close[0]!r}? Write  {close[0]}: {short(value)}"
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
    return found[0]
