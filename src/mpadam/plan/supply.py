"""Whether the text supplies the budgets, and what it weighs: sequences, shards, bytes.

What is known best counts: the manifest of prepared data; else the sizes of the shards in the data folder; else what is
published about C4. Only the first is exact, and only the first and the last lead to a refusal: a folder may still be
filling up.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.plan.assumptions import BYTES_PER_TOKEN, C4_EN, SPARE_DOCUMENTS, VOCABULARY
from mpadam.presence import entries
from mpadam.study.text import DataConfig

DOCUMENT_END_BYTES = 8  # in ends.bin, a document


@dataclass(frozen=True)
class Supply:
    """What the text gives in one pass.

    sequences: training sequences, or None where nothing is known before the data rule has run.
    basis: where the number comes from. refuses: whether it is certain enough to refuse a budget.
    """

    sequences: int | None
    basis: str
    refuses: bool


@dataclass(frozen=True)
class Gigabytes:
    """What a study's data weigh. shards: of C4's training split that the largest budget needs."""

    shards: int
    train: float
    validation: float
    tokens: float


def supply(data: DataConfig, manifest: Mapping[str, Any] | None) -> Supply:
    """What is known of the training text.

    manifest: of the prepared data, None where there is none yet.
    """
    if manifest is not None:
        return Supply(int(manifest["train_sequences"]), "counted by the data rule", refuses=True)
    if not is_c4(data):
        return Supply(None, "counted when the data rule has run", refuses=False)
    shards = _local_shards(data.path)
    if shards:
        documents = round(sum(shards) * C4_EN.train_documents / C4_EN.train_bytes)
        basis = f"estimated from the {len(shards)} training shards in {data.path}"
        return Supply(sequences_of(documents, data), basis, refuses=False)
    return Supply(sequences_of(C4_EN.train_documents, data), "all of C4 en, as published", refuses=True)


def is_c4(data: DataConfig) -> bool:
    """Whether the text comes in C4's shards."""
    return data.source.startswith("c4")


def sequences_of(documents: int, data: DataConfig) -> int:
    """Sequences in so many documents of C4: as many (`truncate_pad`), or the least that `pack` makes of them."""
    if data.sequences == "truncate_pad":
        return documents
    return int(documents * (C4_EN.least_tokens + 1) / data.sequence_length)


def shards_needed(sequences: int, data: DataConfig) -> int:
    """Training shards of C4 to download for so many sequences, `data.epochs` passes allowed; may exceed 1,024."""
    documents = sequences / data.epochs / sequences_of(C4_EN.train_documents, data) * C4_EN.train_documents
    spare = documents * (1 + SPARE_DOCUMENTS)
    whole = math.ceil(spare / C4_EN.documents_per_shard)
    return whole if documents > C4_EN.train_documents else min(whole, C4_EN.train_shards)


def gigabytes(shards: int, vocab_size: int = VOCABULARY) -> Gigabytes:
    """Downloads and token files of so many training shards and all validation shards."""
    share = shards / C4_EN.train_shards
    token = 2 if vocab_size <= 2**16 else 4
    tokens = share * (C4_EN.train_text_bytes / BYTES_PER_TOKEN + C4_EN.train_documents) * token
    ends = share * C4_EN.train_documents * DOCUMENT_END_BYTES
    return Gigabytes(
        shards=shards,
        train=shards * C4_EN.bytes_per_shard / 1e9,
        validation=C4_EN.validation_bytes / 1e9,
        tokens=(tokens + ends) / 1e9,
    )


def shortage(needed: int, available: Supply, data: DataConfig) -> str | None:
    """Why a budget of `needed` sequences cannot be supplied, and what to write; None where it can."""
    if available.sequences is None or needed <= available.sequences * data.epochs:
        return None
    passes = "" if data.epochs == 1 else f", {available.sequences * data.epochs:,} in {data.epochs} passes"
    return (
        f"needs {needed:,} training sequences, but the text has {available.sequences:,}{passes} ({available.basis}), "
        f"and data.epochs {data.epochs} allows no more; lower the budget, add data, or write  "
        f"epochs: {-(-needed // available.sequences)}"
    )


def _local_shards(path: str | None) -> list[int]:
    """Sizes of the training shards in a folder of C4's layout; empty where there is none."""
    inside = entries(Path(path) / "en") if path is not None else []
    found = (file for file in inside if file.match("c4-train.*.json.gz"))
    return sorted(f.stat().st_size for f in found)
