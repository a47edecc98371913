"""A study's data, from text to `manifest.json`: tokenizer, token files, counts.

The three stages are functions that can run alone, shard by shard (`make_tokenizer`, `tokenize_shard` of tokens.py,
`build_manifest`); `prepare` runs them all in one job. It works in a hidden folder beside its results and moves them
into place when all is whole, the manifest last: a folder without manifest is no data, a failure leaves nothing.

    results/<study>/data/{manifest.json, tokenizer/, tokens/<shard>/}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mpadam.atomic import write_json
from mpadam.data.loader import TokenData, TokenSplit, ValidationSet
from mpadam.data.sequences import SEQUENCES
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
from mpadam.data.tokens import FORMAT, digest, digests_of, read_digests, repaired, tokenize_shard
from mpadam.study.config import DataConfig, TokenizerConfig

Log = Callable[[str], None]


def data_request(data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """What of the configuration the data depends on: neither where a folder lies, nor how many epochs are allowed."""
    return {
        "source": source_identity(data),
        "tokenizer": tokenizer_identity(tokenizer),
        "sequences": data.model_dump(mode="json", include={"sequences", "sequence_length", "validation_tokens"}),
    }


def prepare(data: DataConfig, tokenizer: TokenizerConfig, out: Path, *, log: Log) -> dict[str, Any]:
    """Make the data of a study in `out`, unless it is there already; returns the manifest.

    Raises ValueError for text or a tokenizer that cannot be used; `out` is then as it was.
    """
    request = data_request(data, tokenizer)
    created = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with _alone(out):
            if manifest := _existing(out, request):
                log(f"{out}: already prepared ({manifest['fingerprint']})")
                return manifest
            return _prepare(data, tokenizer, request, out, log)
    finally:
        if created and not any(out.iterdir()):
            out.rmdir()


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


def build_manifest(
    request: dict[str, Any], tokenizer: TextTokenizer, shards: list[dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """Stage 3: what the study needs to know of the token files in `folder`/tokens. Nothing is written.

    `fingerprint` covers text, split, tokenizer and how sequences are cut. Entropy is in nats, shares are of positions.
    """
    settings = request["sequences"]
    files = [
        [shard["split"], [shard["files"][name]["sha256"] for name in ("tokens.bin", "ends.bin")]] for shard in shards
    ]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "fingerprint": _hash({"format": FORMAT, "tokenizer": tokenizer.fingerprint, "files": files, **settings}),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
        "request": request,
        "shards": shards,
    }
    data = TokenData(folder, manifest)
    for split in ("train", "validation"):
        if not sum(shard["counts"]["documents"] for shard in shards if shard["split"] == split):
            raise ValueError(f"data.source: no {split} document is left; the text is empty or repeats the other split")
    length, sequences = settings["sequence_length"], settings["sequences"]
    manifest["train_sequences"] = SEQUENCES[sequences].count(data.train, length)
    for split, tokens in (("train", data.train), ("validation", data.validation)):
        manifest[split] = _summary(split, shards, tokens, sequences, length)
    halves = {
        half: ValidationSet(
            data, sequences=sequences, sequence_length=length, tokens=settings["validation_tokens"], half=half
        )
        for half in ("selection", "report")
    }
    counts = {half: validation.target_counts(tokenizer.vocab_size) for half, validation in halves.items()}
    manifest["validation_set"] = {half: {"target_tokens": int(n.sum())} for half, n in counts.items()}
    manifest["validation_set"]["target_tokens"] = int(sum(n.sum() for n in counts.values()))
    manifest["unigram_entropy"] = _entropy(sum(counts.values()))
    return manifest


def _prepare(
    data: DataConfig, tokenizer: TokenizerConfig, request: dict[str, Any], out: Path, log: Log
) -> dict[str, Any]:
    stage = out / ".partial"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        log(f"tokenizer: {tokenizer.source}")
        text_tokenizer = make_tokenizer(data, tokenizer, stage / "tokenizer")
        log(f"tokenizer: {text_tokenizer.vocab_size} tokens ({text_tokenizer.fingerprint})")
        shards = tokenize_all(text_shards(data), text_tokenizer, stage / "tokens", log=log)
        manifest = build_manifest(request, text_tokenizer, shards, stage)
        (out / "manifest.json").unlink(missing_ok=True)
        for name in ("tokenizer", "tokens"):
            shutil.rmtree(out / name, ignore_errors=True)
            (stage / name).replace(out / name)
        write_json(out / "manifest.json", manifest)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return manifest


def _existing(out: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest in `out`, if it answers this very request and its files are whole."""
    try:
        manifest = TokenData.open(out).manifest
    except (ValueError, KeyError):
        return None
    return manifest if manifest["request"] == request else None


def _training_text(shards: list[TextShard]) -> Iterator[str]:
    """The documents that training will see: without those that equal a validation document."""
    held_out = digests_of(text for shard in shards if shard.split == "validation" for text in shard.open())
    for shard in shards:
        if shard.split == "train":
            for document in shard.open():
                text = repaired(document)
                if digest(text) not in held_out:
                    yield text


def _summary(
    split: str, shards: list[dict[str, Any]], tokens: TokenSplit, sequences: str, length: int
) -> dict[str, Any]:
    """Counts of a split, and what one pass over it in sequences of this kind is made of."""
    names = ("read", "documents", "tokens", "text_bytes", "empty", "duplicates", "repaired", "separators_removed")
    total = {name: sum(shard["counts"][name] for shard in shards if shard["split"] == split) for name in names}
    rows = SEQUENCES[sequences].count(tokens, length)
    filled = rows * length
    if sequences == "truncate_pad":
        filled = sum(int(np.minimum(lengths, length).sum()) for lengths in tokens.lengths())
    return {
        **total,
        "bytes_per_token": total["text_bytes"] / total["tokens"],
        "sequences": rows,
        "positions": rows * length,
        "target_tokens": filled - rows,
        "padding_share": 1 - filled / (rows * length) if rows else 0.0,
    }


def _entropy(counts: Any) -> float:
    """Entropy in nats of the distribution that these counts are: what the best guess without context costs a token."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process prepares a folder: a lock that ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ValueError(f"{folder}: another process is preparing it; wait until it has ended") from None
    finally:
        os.close(descriptor)


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
