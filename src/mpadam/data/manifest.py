"""`manifest.json` of a study's data: the description of its token files."""

from pathlib import Path
from typing import Any

import numpy as np

from mpadam.canonical import sha256_of
from mpadam.data.loader import TokenData, TokenSplit, ValidationSet
from mpadam.data.sequences import SEQUENCES
from mpadam.data.tokenizer import TextTokenizer
from mpadam.data.tokens import FORMAT


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
    manifest["unigram_entropy"] = _entropy(sum(counts.values()))
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


def _entropy(counts: Any) -> float:
    """Entropy of these counts in nats: the loss per token of the best prediction without context."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
