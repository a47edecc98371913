"""The stages of a study's data, each a function that can be a job of its own.

`make_tokenizer`, then `tokenize_one` for each shard (validation shards first), then `assemble`. What they leave is byte
for byte what `prepare` (prepare.py) makes in one job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpadam.atomic import write_json
from mpadam.data.manifest import build_manifest
from mpadam.data.sources import source_identity, text_shards
from mpadam.data.text import TextShard
from mpadam.data.tokenizer import (
    TextTokenizer,
    copy_tokenizer,
    load_tokenizer,
    save_bpe,
    tokenizer_identity,
    train_bpe,
)
from mpadam.data.tokens import (
    digest,
    digests_of,
    held_out_hash,
    read_digests,
    read_shard_manifest,
    repaired,
    tokenize_shard,
)
from mpadam.study.config import DataConfig, TokenizerConfig

Log = Callable[[str], None]


def data_request(data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """What of the configuration the data depends on: neither where a folder lies, nor how many epochs are allowed."""
    return {
        "source": source_identity(data),
        "tokenizer": tokenizer_identity(tokenizer),
        "sequences": data.model_dump(mode="json", include={"sequences", "sequence_length", "validation_tokens"}),
    }


def make_tokenizer(data: DataConfig, tokenizer: TokenizerConfig, folder: Path) -> TextTokenizer:
    """Stage 1: train the tokenizer on the training text, or copy the given one; returns it as read from `folder`."""
    if tokenizer.source == "folder":
        assert tokenizer.path is not None
        load_tokenizer(Path(tokenizer.path))
        copy_tokenizer(Path(tokenizer.path), folder)
    else:
        assert tokenizer.vocab_size is not None
        save_bpe(train_bpe(_training_text(text_shards(data)), vocab_size=tokenizer.vocab_size), folder)
    return load_tokenizer(folder)


def tokenize_one(data: DataConfig, name: str, out: Path, *, log: Log) -> dict[str, Any]:
    """Stage 2 for one shard, into `out`/tokens; returns its manifest.

    A training shard leaves out what the validation shards in `out`/tokens hold, so these come first.
    Raises ValueError when the shard, the tokenizer or a validation shard is missing.
    """
    shards = {shard.name: shard for shard in text_shards(data)}
    if name not in shards:
        some = ", ".join(list(shards)[:3])
        raise ValueError(f"--shard {name}: the text has no such shard; it has {len(shards)}: {some}, ...")
    tokenizer = load_tokenizer(out / "tokenizer")
    tokens = out / "tokens"
    held_out = frozenset[bytes]() if shards[name].split == "validation" else _held_out(list(shards.values()), tokens)
    with _rate(name, log) as progress:
        return tokenize_shard(shards[name], tokenizer, tokens, held_out=held_out, progress=progress)


def assemble(data: DataConfig, tokenizer: TokenizerConfig, out: Path, *, log: Log) -> dict[str, Any]:
    """Stage 3 alone: the manifest of what stages 1 and 2 left in `out`, written there and returned.

    Raises ValueError when a shard is missing or was made from another file, tokenizer or validation text.
    """
    request = data_request(data, tokenizer)
    shards = text_shards(data)
    text_tokenizer = load_tokenizer(out / "tokenizer")
    _check_tokenizer(tokenizer, text_tokenizer)
    held_out = held_out_hash(_held_out(shards, out / "tokens"))
    manifests = []
    for shard in shards:
        manifest = read_shard_manifest(out / "tokens" / shard.name)
        expected = {
            "tokenizer_fingerprint": text_tokenizer.fingerprint,
            "held_out": held_out if shard.split == "train" else held_out_hash(frozenset()),
        }
        stale = [key for key, value in expected.items() if manifest[key] != value]
        if shard.path and manifest["source"]["bytes"] != shard.path.stat().st_size:
            stale.append("source")
        if stale:
            raise ValueError(
                f"{out / 'tokens' / shard.name}: made with another {' and '.join(stale)}; run  mpadam tokenize "
                f"--shard {shard.name}  again"
            )
        manifests.append(manifest)
    manifest = build_manifest(request, text_tokenizer, manifests, out)
    write_json(out / "manifest.json", manifest)
    log(f"{out}: {len(shards)} shards")
    return manifest


def tokenize_all(shards: list[TextShard], tokenizer: TextTokenizer, folder: Path, *, log: Log) -> list[dict[str, Any]]:
    """Stage 2 for all shards, validation first; returns their manifests, in the order of `shards`."""
    manifests: dict[str, dict[str, Any]] = {}
    held_out: frozenset[bytes] = frozenset()
    for shard in sorted(shards, key=lambda shard: shard.split != "validation"):
        with _rate(shard.name, log) as progress:
            manifests[shard.name] = tokenize_shard(shard, tokenizer, folder, held_out=held_out, progress=progress)
        if shard.split == "validation":
            held_out |= read_digests(folder / shard.name)
    return [manifests[shard.name] for shard in shards]


def _held_out(shards: list[TextShard], tokens: Path) -> frozenset[bytes]:
    """Digests of all validation documents, as the validation shards left them."""
    names = [shard.name for shard in shards if shard.split == "validation"]
    for name in names:
        if not (tokens / name / "shard.json").is_file():
            raise ValueError(f"{tokens / name}: not there yet; run  mpadam tokenize --shard {name}  first")
    return frozenset().union(*(read_digests(tokens / name) for name in names))


def _check_tokenizer(config: TokenizerConfig, found: TextTokenizer) -> None:
    """Whether the tokenizer made earlier is the configuration's, as far as can be told without training it again."""
    expected = tokenizer_identity(config)
    actual = {"source": config.source, "vocab_size": found.vocab_size, "fingerprint": found.fingerprint}
    if any(actual[key] != value for key, value in expected.items()):
        raise ValueError(f"the data folder's tokenizer is not that of {expected}; run  mpadam tokenizer  again")


def _training_text(shards: list[TextShard]) -> Iterator[str]:
    """The documents that training will see: without those that equal a validation document."""
    held_out = digests_of(text for shard in shards if shard.split == "validation" for text in shard.open())
    for shard in shards:
        if shard.split == "train":
            for document in shard.open():
                text = repaired(document)
                if digest(text) not in held_out:
                    yield text


@contextmanager
def _rate(name: str, log: Log) -> Iterator[Callable[[int], None]]:
    """Reports bytes of text and speed: every 64 MB, and at the end."""
    start, done, reported = time.perf_counter(), 0, 0

    def report() -> None:
        log(f"{name}: {done / 1e6:.1f} MB of text, {done / 1e6 / max(time.perf_counter() - start, 1e-9):.1f} MB/s")

    def progress(count: int) -> None:
        nonlocal done, reported
        done += count
        if done - reported >= 64e6:
            reported = done
            report()

    yield progress
    report()
