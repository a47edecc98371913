"""A summary of prepared data: counts, lengths, and decoded sequences as the model reads them.

mpadam data inspect --out results/smoke/data
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpadam.data.loader import TokenData, TrainBatches
from mpadam.data.sequences import IGNORED
from mpadam.data.tokenizer import load_tokenizer

BARS = 50  # characters of the longest bar
SHOWN = 400  # characters of a sequence


def inspection(folder: Path, *, sequences: int, seed: int) -> str:
    """A page of text about the data in `folder`.

    sequences: how many of the sequences to show that a run with the data seed `seed` reads first.
    """
    if sequences < 1:
        raise ValueError(f"--sequences {sequences}: at least 1")
    data = TokenData.open(folder)
    lines = [f"{folder}  fingerprint {data.manifest['fingerprint']}", *_counts(data), "", *_histogram(data), ""]
    return "\n".join([*lines, *_sequences(data, sequences, seed)])


def _counts(data: TokenData) -> Iterator[str]:
    manifest, settings = data.manifest, data.manifest["request"]["sequences"]
    yield (
        f"tokenizer {manifest['tokenizer_fingerprint']}: {data.vocab_size:,} tokens, EOS {manifest['eos_id']}, "
        f"padding {data.pad_id}"
    )
    yield f"sequences: {settings['sequences']}, {settings['sequence_length']} positions"
    for split in ("train", "validation"):
        of = manifest[split]
        yield (
            f"{split}: {of['documents']:,} documents of {of['read']:,} read ({of['empty']:,} empty, "
            f"{of['duplicates']:,} duplicates), {of['tokens']:,} tokens, {of['bytes_per_token']:.2f} bytes per token"
        )
        yield (
            f"{split}: {of['sequences']:,} sequences, {of['positions']:,} positions, {of['padding_share']:.1%} "
            f"padding, {of['target_tokens']:,} targets; {of['repaired']:,} documents repaired, "
            f"{of['separators_removed']:,} with an EOS inside"
        )
    of = manifest["validation_set"]
    yield (
        f"validation set: {of['target_tokens']:,} targets, {of['selection']['target_tokens']:,} to select and "
        f"{of['report']['target_tokens']:,} to report; unigram entropy {manifest['unigram_entropy']:.3f} nats"
    )


def _histogram(data: TokenData) -> Iterator[str]:
    """Training documents by length, in powers of two."""
    counts = np.zeros(64, np.int64)
    total = 0
    for lengths in data.train.lengths():
        counts += np.bincount(np.log2(lengths).astype(np.int64), minlength=64)
        total += int(lengths.sum())
    yield f"training documents by tokens, EOS included (mean {total / data.train.documents:.1f}):"
    first, last = np.flatnonzero(counts)[[0, -1]]
    for power in range(first, last + 1):
        bar = "#" * round(BARS * counts[power] / counts.max())
        yield f"{2**power:>9,} to {2 ** (power + 1) - 1:<9,} {counts[power]:>12,} {bar}".rstrip()


def _sequences(data: TokenData, count: int, seed: int) -> Iterator[str]:
    settings: dict[str, Any] = data.manifest["request"]["sequences"]
    batches = TrainBatches(
        data,
        sequences=settings["sequences"],
        sequence_length=settings["sequence_length"],
        global_batch_size=count,
        seed=seed,
    )
    tokenizer = load_tokenizer(data.folder / "tokenizer")
    batch = batches.batch(0)
    yield f"first sequences of data seed {seed}:"
    for index, row, labels in zip(batches.indices(0), batch.input_ids, batch.labels, strict=True):
        filled = int((labels != IGNORED).sum())
        yield f"[{index}] {filled} of {len(labels)} positions: {_shown(tokenizer.decode(row[:filled].tolist()))}"


def _shown(text: str) -> str:
    """On one line, the middle left out where it is long."""
    line = repr(text)
    return line if len(line) <= SHOWN else f"{line[: SHOWN // 2]} ... {line[-SHOWN // 2 :]}"
