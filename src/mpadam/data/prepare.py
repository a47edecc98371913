"""A study's data in one job, from text to `manifest.json`.

    results/<study>/data/{manifest.json, tokenizer/, tokens/<shard>/}

The files are made in a hidden folder inside `out` and moved into place when all are complete, the manifest last: a
folder without a manifest is no data, a failure leaves nothing, and what a killed call leaves the next call deletes. One
process at a time may work on a folder, which the workflow ensures.

    mpadam data --config config.yaml --config studies/smoke.yaml --out results/smoke/data
"""

from pathlib import Path
from typing import Any

from mpadam.atomic import remove
from mpadam.data.loader import TokenData
from mpadam.data.stages import Log, assemble, data_request, make_tokenizer, tokenize_all
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
        log(f"tokenizer: {tokenizer.source}")
        made = make_tokenizer(data, tokenizer, stage / "tokenizer")
        log(f"tokenizer: {made.vocab_size} tokens ({made.fingerprint})")
        tokenize_all(data, stage, workers=workers, log=log)
        manifest = assemble(data, tokenizer, stage)
        remove(out / "manifest.json")
        for name in ("tokenizer", "tokens", "manifest.json"):
            remove(out / name)
            (stage / name).replace(out / name)
        return manifest
    finally:
        remove(stage)
        if created and not any(out.iterdir()):
            out.rmdir()


def _existing(out: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest in `out`, if it answers this request and its files are complete."""
    try:
        manifest = TokenData.open(out).manifest
    except (ValueError, KeyError):
        return None
    return manifest if manifest["request"] == request else None
