"""A study's data, from text to `manifest.json`: in stages, each a function that can be a job of its own, or in one job.

    results/<study>/data/{manifest.json, tokenizer/, tokens/<shard>/}

Stages: `make_tokenizer`, then `tokenize_one` for each shard (validation shards first), then `assemble`. Their files
equal those that `prepare` makes in one job, byte for byte.

    mpadam data --config config.yaml --config studies/smoke.yaml --out results/smoke/data

`prepare` makes the files in a hidden folder inside `out` and moves them into place when all are complete, the manifest
last: a folder without a manifest is no data, a failure leaves nothing, and what a killed call leaves the next call
deletes. One process at a time may work on a folder, which the workflow ensures.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpadam.atomic import remove, write_json
from mpadam.canonical import record_sha256, sha256_of
from mpadam.data.loader import TokenData, TokenSplit, ValidationSet
from mpadam.data.sequences import SEQUENCES
from mpadam.data.sources import source_identity, text_shards
from mpadam.data.text import TextShard
from mpadam.data.tokenizer import (
    TextTokenizer,
    copy_tokenizer,
    fetched_tokenizer,
    load_tokenizer,
    save_bpe,
    tokenizer_identity,
    train_bpe,
)
from mpadam.data.tokens import (
    FORMAT,
    digest,
    digests_of,
    held_out_hash,
    read_digests,
    read_shard_manifest,
    tokenize_shard,
    utf8,
)
from mpadam.presence import is_there
from mpadam.stored import read_object, sha256
from mpadam.study.text import DataConfig, TokenizerConfig

# --- the manifest -----------------------------------------------------------------------------------------------------


def build_manifest(
    request: dict[str, Any], tokenizer: TextTokenizer, shards: list[dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """The manifest of the token files in `folder`/tokens. Nothing is written.

    `fingerprint` covers text, split, tokenizer and how sequences are cut. Entropy is in nats, shares are of positions.
    """
    settings = request["sequences"]
    files = [
        [shard["split"], [shard["files"][name]["sha256"] for name in ("tokens.bin", "ends.bin")]] for shard in shards
    ]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "fingerprint": sha256_of({"format": FORMAT, "tokenizer": tokenizer.fingerprint, "files": files, **settings})[
            :16
        ],
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
    total = np.sum(list(counts.values()), axis=0)  # its entropy is the loss of the best prediction without context
    share = total[total > 0] / total.sum()
    manifest["unigram_entropy"] = float(-(share * np.log(share)).sum())
    return manifest


def _summary(
    split: str, shards: list[dict[str, Any]], tokens: TokenSplit, sequences: str, length: int
) -> dict[str, Any]:
    """Counts of a split, and of the sequences, positions and targets of one pass over it."""
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


# --- the stages -------------------------------------------------------------------------------------------------------


Log = Callable[[str], None]


def data_request(data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """The part of the configuration that the data depends on: neither the place of a folder nor the epochs allowed."""
    return {
        "source": source_identity(data),
        "tokenizer": tokenizer_identity(tokenizer),
        "sequences": data.model_dump(mode="json", include={"sequences", "sequence_length", "validation_tokens"}),
    }


def make_tokenizer(data: DataConfig, tokenizer: TokenizerConfig, folder: Path) -> TextTokenizer:
    """Stage 1: train the tokenizer on the training text, or copy the given one; returns it as read from `folder`.

    `origin.json` in the same folder records what it was made of, and is the file that the workflow watches.
    """
    if tokenizer.source == "bpe":
        assert tokenizer.vocab_size is not None
        save_bpe(train_bpe(_training_text(text_shards(data)), vocab_size=tokenizer.vocab_size), folder)
    else:
        source = fetched_tokenizer(data, tokenizer) if tokenizer.source == "hub" else Path(tokenizer.path or "")
        load_tokenizer(source, eos_token=tokenizer.eos_token)
        copy_tokenizer(source, folder, eos_token=tokenizer.eos_token)
    made = load_tokenizer(folder)
    write_json(folder / "origin.json", {**_origin(data, tokenizer), "fingerprint": made.fingerprint})
    return made


def tokenize_one(data: DataConfig, name: str, out: Path, *, log: Log) -> dict[str, Any]:
    """Stage 2 for one shard, into `out`/tokens, unless it is there; returns its manifest.

    A training shard leaves out what the validation shards in `out`/tokens hold, so these come first.
    Raises ValueError when the shard, the tokenizer or a validation shard is missing.
    """
    shards = {shard.name: shard for shard in text_shards(data)}
    if name not in shards:
        some = ", ".join(list(shards)[:3])
        raise ValueError(f"--shard {name}: the text has no such shard; it has {len(shards)}: {some}, ...")
    shard, tokens = shards[name], out / "tokens"
    tokenizer = load_tokenizer(out / "tokenizer")
    held_out = frozenset[bytes]() if shard.split == "validation" else _held_out(list(shards.values()), tokens)
    if manifest := _tokenized(shard, tokens, tokenizer, held_out):
        log(f"{name}: already tokenized")
        return manifest
    begun = time.perf_counter()

    def report(done: int) -> None:
        log(f"{name}: {done / 1e6:.1f} MB of text, {done / 1e6 / max(time.perf_counter() - begun, 1e-9):.1f} MB/s")

    return tokenize_shard(shard, tokenizer, tokens, held_out=held_out, report=report)


def assemble(data: DataConfig, tokenizer: TokenizerConfig, out: Path) -> dict[str, Any]:
    """Stage 3: the manifest of what stages 1 and 2 left in `out`, written there and returned.

    Raises ValueError when a shard is missing or was made from another file, tokenizer or validation text.
    """
    request, shards, tokens = data_request(data, tokenizer), text_shards(data), out / "tokens"
    text_tokenizer = load_tokenizer(out / "tokenizer")
    made_of = read_object(out / "tokenizer" / "origin.json", remedy="run  mpadam tokenizer  again")
    if other := [key for key, value in _origin(data, tokenizer).items() if made_of.get(key) != value]:
        raise ValueError(f"{out / 'tokenizer'}: made with another {' and '.join(other)}; run  mpadam tokenizer  again")
    held_out = held_out_hash(_held_out(shards, tokens))
    manifests = []
    for shard in shards:
        manifest = read_shard_manifest(tokens / shard.name)
        if other := _other_than_wanted(manifest, shard, text_tokenizer, held_out):
            raise ValueError(
                f"{tokens / shard.name}: made with another {' and '.join(other)}; run  mpadam tokenize --shard "
                f"{shard.name}  again"
            )
        manifests.append(manifest)
    manifest = build_manifest(request, text_tokenizer, manifests, out)
    write_json(out / "manifest.json", manifest)
    return manifest


def tokenize_all(data: DataConfig, out: Path, *, workers: int, log: Log) -> None:
    """Stage 2 for all shards, validation first.

    workers: shards at a time; with several, each is a process, and `log` must be a function of a module.
    """
    shards = text_shards(data)
    context = multiprocessing.get_context("spawn")  # the tokenizer's threads do not survive a fork
    pool = ProcessPoolExecutor(workers, mp_context=context) if workers > 1 else None
    try:
        for split in ("validation", "train"):
            names = [shard.name for shard in shards if shard.split == split]
            list((pool.map if pool else map)(partial(tokenize_one, data, out=out, log=log), names))
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)  # after a failure, shards that have not started are left out


def _tokenized(
    shard: TextShard, tokens: Path, tokenizer: TextTokenizer, held_out: frozenset[bytes]
) -> dict[str, Any] | None:
    """The manifest of a shard that is there, complete, and made of this file; checking it is much faster."""
    folder = tokens / shard.name
    if shard.path is None or not is_there(folder / "shard.json"):
        return None
    try:
        manifest = read_shard_manifest(folder)
    except ValueError:  # of another version
        return None
    if _other_than_wanted(manifest, shard, tokenizer, held_out_hash(held_out)):
        return None
    files = {folder / name: expected["sha256"] for name, expected in manifest["files"].items()}
    files[shard.path] = manifest["source"]["sha256"]
    return manifest if all(sha256(path) == expected for path, expected in files.items()) else None


def _other_than_wanted(
    manifest: dict[str, Any], shard: TextShard, tokenizer: TextTokenizer, held_out: str
) -> list[str]:
    """What a shard's token files were made with that is not wanted now, as far as their manifest tells."""
    expected = {
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "held_out": held_out if shard.split == "train" else held_out_hash(frozenset()),
    }
    other = [key for key, value in expected.items() if manifest[key] != value]
    if any(manifest["source"].get(key) != value for key, value in shard.facts.items()):
        other.append("source")
    return other


def _held_out(shards: list[TextShard], tokens: Path) -> frozenset[bytes]:
    """Digests of all validation documents, as the validation shards left them."""
    names = [shard.name for shard in shards if shard.split == "validation"]
    for name in names:
        if not is_there(tokens / name / "shard.json"):
            raise ValueError(f"{tokens / name}: not there yet; run  mpadam tokenize --shard {name}  first")
    return frozenset().union(*(read_digests(tokens / name) for name in names))


def _origin(data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """What a tokenizer is made of: itself, or the text it learns from, by a checksum of that text's identity."""
    if tokenizer.source != "bpe":
        return tokenizer_identity(tokenizer)
    return {**tokenizer_identity(tokenizer), "text": record_sha256(source_identity(data))[:16]}


def _training_text(shards: list[TextShard]) -> Iterator[str]:
    """The documents that training will see: without those that equal a validation document."""
    held_out = digests_of(text for shard in shards if shard.split == "validation" for text in shard.open())
    for shard in shards:
        if shard.split == "train":
            for document in shard.open():
                content, _ = utf8(document)
                if digest(content) not in held_out:
                    yield content.decode()


# --- all in one job ---------------------------------------------------------------------------------------------------


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
