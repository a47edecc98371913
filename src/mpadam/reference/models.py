"""Which model a `--model_config` names: one of GaLore's by its file name, or a file of the same kind."""

import json
import re
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from mpadam.llama import PAPER_SIZES
from mpadam.presence import is_there

#: Updates at budget 1 (docs/algorithm.md, "Models").
STEPS_1X = {"60m": 10_000, "130m": 20_000, "350m": 60_000, "1b": 100_000}

#: What all LLaMAs here have in common; a file that says otherwise is another model.
_COMMON = {
    "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02,
    "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip
_SHAPE = {
    "hidden_size": "hidden_size", "intermediate_size": "intermediate_size", "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
}  # fmt: skip


def model_of(path: str) -> tuple[str, dict[str, int]]:
    """Name and shape (`hidden_size`, `intermediate_size`, `layers`, `heads`) of a model.

    path: `llama_configs/llama_60m.json`, which need not exist, or a Transformers configuration that does.
    Raises ValueError for a model that is neither, or no LLaMA of this study's kind.
    """
    name = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(path).stem.lower().removeprefix("llama_")).strip("-")
    if is_there(Path(path)):
        return name, _shape_in(Path(path))
    if name not in PAPER_SIZES or PurePosixPath(path).suffix != ".json":
        known = ", ".join(f"llama_{size}.json" for size in PAPER_SIZES)
        raise ValueError(f"--model_config {path}: no such file, and none of the known {known}")
    return name, asdict(PAPER_SIZES[name])


def _shape_in(path: Path) -> dict[str, int]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        shape = {ours: int(content[theirs]) for theirs, ours in _SHAPE.items()}
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--model_config {path}: no configuration of a LLaMA: {type(error).__name__} {error}"
        ) from None
    other = [key for key, value in _COMMON.items() if content.get(key, value) != value]
    if other:
        raise ValueError(
            f"--model_config {path}: {other[0]} is {content[other[0]]!r}; here it is {_COMMON[other[0]]!r}"
        )
    return shape
