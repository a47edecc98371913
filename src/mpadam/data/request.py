"""What to prepare, from configuration files or from the JSON that the workflow passes. One line says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mpadam.study.config import DataConfig, Section, TokenizerConfig
from mpadam.study.load import ConfigError, load_study

AnySection = TypeVar("AnySection", bound=Section)


def from_config(paths: list[Path]) -> tuple[DataConfig, TokenizerConfig]:
    """The sections `data` and `tokenizer` of a study."""
    study = load_study(paths)
    return study.data, study.tokenizer


def from_json(text: str) -> tuple[DataConfig, TokenizerConfig]:
    """The sections of a request {"data": {...}, "tokenizer": {...}}.

    Raises ConfigError when it is no JSON or a section is missing or wrong.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--request: not JSON: {error}") from None
    if not isinstance(content, dict) or set(content) != {"data", "tokenizer"}:
        raise ConfigError('--request: write {"data": {...}, "tokenizer": {...}}, with these two keys')
    return _section("data", DataConfig, content["data"]), _section("tokenizer", TokenizerConfig, content["tokenizer"])


def _section(name: str, model: type[AnySection], content: object) -> AnySection:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join([name, *map(str, first["loc"])])
        message = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
        raise ConfigError(f"--request: {location}: {message}, but it is {first['input']!r}") from None
