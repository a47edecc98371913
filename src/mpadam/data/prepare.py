"""A study's data in one job, from text to `manifest.json`.

    results/<study>/data/{manifest.json, tokenizer/, tokens/<shard>/}

It works in a hidden folder beside its results and moves them into place when all is whole, the manifest last: a folder
without manifest is no data, a failure leaves nothing, a kill leaves what the next call sweeps away. A folder is for one
process at a time, which the workflow sees to.

    mpadam data --config config.yaml --config studies/smoke.yaml --out results/smoke/data
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpadam.atomic import remove, write_json
from mpadam.data.loader import TokenData
from mpadam.data.manifest import build_manifest
from mpadam.data.stages import Log, data_request, make_tokenizer, tokenize_all
from mpadam.study.text import DataConfig, TokenizerConfig


def prepare(data: DataConfig, tokenizer: TokenizerConfig, out: Path, *, log: Log, workers: int = 1) -> dict[str, Any]:
    """Make the data of a study in `out`, unless it is there already; returns the manifest.

    workers: shards tokenized at the same time.

    Raises ValueError for text or a tokenizer that cannot be used; `out` is then as it was.
    """
    request = data_request(data, tokenizer)
    created = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    stage = out / ".partial"
    try:
        if manifest := _existing(out, request):
            log(f"{out}: already prepared ({manifest['fingerprint']})")
            return manifest
        remove(stage)
        manifest = _stages(data, tokenizer, stage, log, workers)
        _move(stage, out)
        write_json(out / "manifest.json", manifest)
        return manifest
    finally:
        remove(stage)
        if created and not any(out.iterdir()):
            out.rmdir()


def _stages(data: DataConfig, tokenizer: TokenizerConfig, stage: Path, log: Log, workers: int) -> dict[str, Any]:
    """Tokenizer and token files, in `stage`; returns their manifest."""
    log(f"tokenizer: {tokenizer.source}")
    text_tokenizer = make_tokenizer(data, tokenizer, stage / "tokenizer")
    log(f"tokenizer: {text_tokenizer.vocab_size} tokens ({text_tokenizer.fingerprint})")
    shards = tokenize_all(data, stage, workers=workers, log=log)
    return build_manifest(data_request(data, tokenizer), text_tokenizer, shards, stage)


def _move(stage: Path, out: Path) -> None:
    """Put what is whole in its place; without manifest until the caller writes it."""
    (out / "manifest.json").unlink(missing_ok=True)
    for name in ("tokenizer", "tokens"):
        remove(out / name)
        (stage / name).replace(out / name)


def _existing(out: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest in `out`, if it answers this very request and its files are whole."""
    try:
        manifest = TokenData.open(out).manifest
    except (ValueError, KeyError):
        return None
    return manifest if manifest["request"] == request else None
