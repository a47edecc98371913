"""What to prepare, from configuration files or from the JSON that the workflow passes. One line says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mpadam.data.need import planned
from mpadam.study.faults import first_fault
from mpadam.study.load import ConfigError, load_study
from mpadam.study.section import Section
from mpadam.study.text import DataConfig, TokenizerConfig

AnySection = TypeVar("AnySection", bound=Section)


def from_config(paths: list[Path]) -> tuple[DataConfig, TokenizerConfig]:
    """The sections `data` and `tokenizer` of a study; of C4 from the hub as many shards as its budgets need."""
    study = load_study(paths)
    return planned(study), study.tokenizer


def from_json(text: str) -> tuple[DataConfig, TokenizerConfig]:
    """The sections of a request {"data": {...}, "tokenizer": {...}}.

    Raises ConfigError when it is no JSON or a section is missing or wrong.
    """
    content = _content(text)
    if set(content) != {"data", "tokenizer"}:
        raise ConfigError('--request: write {"data": {...}, "tokenizer": {...}}, with these two keys')
    return _section("data", DataConfig, content["data"]), _section("tokenizer", TokenizerConfig, content["tokenizer"])


def data_from_json(text: str) -> DataConfig:
    """The section `data` of a request {"data": {...}}, for commands that need no other.

    Raises ConfigError as `from_json`.
    """
    content = _content(text)
    if "data" not in content or set(content) - {"data", "tokenizer"}:
        raise ConfigError('--request: write {"data": {...}}')
    return _section("data", DataConfig, content["data"])


def _content(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--request: not JSON: {error}") from None
    return content if isinstance(content, dict) else {}


def _section(name: str, model: type[AnySection], content: object) -> AnySection:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"--request: {first_fault(error, root=name)}") from None
