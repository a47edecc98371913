"""What training reads: token files as memory maps, batches as a function of (seed, step), a fixed validation set.

    data = TokenData.open(Path("results/smoke/data"))
    batches = TrainBatches(data, sequences="pack", sequence_length=128, global_batch_size=16, seed=1)
    batch = batches.batch(0)              # or batches.batch(0, rows=slice(0, 4)), the part of a rank or a micro-batch

Arrays are NumPy int64, which `torch.from_numpy` takes without a copy. `labels` is `input_ids` with -100 on padding. The
model shifts them, so that a row of L positions gives at most L - 1 targets, the first token not among them.
"""

from __future__ import annotations

import errno
import logging
import resource
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mpadam.atomic import UNSUPPORTED
from mpadam.data.sequences import IGNORED, SEQUENCES, permute
from mpadam.data.tokens import read_manifest
from mpadam.presence import is_there
from mpadam.stored import sha256, stored

log = logging.getLogger(__name__)

Int64 = npt.NDArray[np.int64]
Half = Literal["selection", "report"]
OTHER_FILES = 256  # that a process may have open in addition to its memory maps, each of which keeps one open


@dataclass(frozen=True)
class Batch:
    """input_ids, labels: int64 of shape (rows, sequence length)."""

    input_ids: Int64
    labels: Int64

    @staticmethod
    def of(sequences: Sequence[npt.NDArray[Any]], *, length: int, pad_id: int) -> Batch:
        """One row per sequence, padded to `length` tokens."""
        input_ids = np.full((len(sequences), length), pad_id, np.int64)
        labels = np.full((len(sequences), length), IGNORED, np.int64)
        for row, tokens in enumerate(sequences):
            input_ids[row, : len(tokens)] = labels[row, : len(tokens)] = tokens
        return Batch(input_ids, labels)

    @property
    def positions(self) -> int:
        return int(self.input_ids.size)

    @property
    def target_tokens(self) -> int:
        """Tokens the loss is a mean over: labels after the shift that are not -100."""
        return int((self.labels[:, 1:] != IGNORED).sum())


class TokenSplit:
    """All shards of one split as one sequence of documents and one stream of tokens."""

    def __init__(self, folder: Path, shards: list[dict[str, Any]]) -> None:
        self._folder = folder
        self._shards = shards
        self._maps: dict[tuple[int, str], npt.NDArray[Any]] = {}
        self._document_ends = list(accumulate(shard["counts"]["documents"] for shard in shards))
        self._token_ends = list(accumulate(shard["counts"]["tokens"] for shard in shards))

    @property
    def documents(self) -> int:
        return self._document_ends[-1]

    @property
    def tokens(self) -> int:
        return self._token_ends[-1]

    def document(self, index: int, limit: int | None = None) -> npt.NDArray[Any]:
        """Tokens of a document with its EOS, or the first `limit` of them."""
        number = bisect_right(self._document_ends, index)
        ends = self._map(number, "ends.bin", "<u8")
        local = index - (self._document_ends[number - 1] if number else 0)
        start, end = int(ends[local - 1]) if local else 0, int(ends[local])
        return self._tokens(number)[start : end if limit is None else min(end, start + limit)]

    def span(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Tokens start..stop-1 of the stream."""
        parts = []
        while start < stop:
            number = bisect_right(self._token_ends, start)
            before = self._token_ends[number - 1] if number else 0
            end = min(stop, self._token_ends[number])
            parts.append(self._tokens(number)[start - before : end - before])
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def lengths(self) -> Iterator[Int64]:
        """Tokens of each document, EOS included, shard by shard."""
        for number in range(len(self._shards)):
            ends = self._map(number, "ends.bin", "<u8").astype(np.int64)
            yield np.diff(ends, prepend=0)

    def _tokens(self, number: int) -> npt.NDArray[Any]:
        return self._map(number, "tokens.bin", self._shards[number]["dtype"])

    def _map(self, number: int, name: str, dtype: str) -> npt.NDArray[Any]:
        if (number, name) not in self._maps:
            path = self._folder / self._shards[number]["name"] / name
            empty = self._shards[number]["files"][name]["bytes"] == 0  # which cannot be mapped
            self._maps[number, name] = np.empty(0, dtype) if empty else _mapped(path, dtype)
        return self._maps[number, name]


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    """A file's content, mapped; read into memory where its file system maps no files."""
    try:
        # as a plain array: slicing the subclass np.memmap costs ten times as much
        return np.asarray(np.memmap(path, dtype, "r"))
    except PermissionError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENODEV, *UNSUPPORTED):
            raise
        log.warning(
            "%s: %.1f MB are read into memory, since the file system maps no files (mmap: %s); where memory is short, "
            "keep the study's data folder on another one",
            path,
            path.stat().st_size / 1e6,
            error.strerror,
        )
        return np.fromfile(path, dtype)


@dataclass(frozen=True)
class TokenData:
    folder: Path
    manifest: dict[str, Any]

    @staticmethod
    def open(folder: Path, *, verify: bool = False) -> TokenData:
        """Open prepared data. The sizes of all files are checked; their checksums too with `verify`.

        Raises ValueError when the manifest is missing or another version's, or a file is not what it says.
        """
        path, again = folder / "manifest.json", "run  mpadam data  again"
        missing = f"{folder}: no manifest.json, so this is no prepared data; run  mpadam data  first"
        keys = ("fingerprint", "tokenizer_fingerprint", "pad_id", "vocab_size", "shards")
        manifest = read_manifest(path, *keys, missing=missing, remedy=again)
        with stored(path, remedy=again):
            for shard in manifest["shards"]:
                for name, expected in shard["files"].items():
                    _check(folder / "tokens" / shard["name"] / name, expected, verify)
        _allow_files(2 * len(manifest["shards"]) + OTHER_FILES)
        return TokenData(folder, manifest)

    @cached_property
    def train(self) -> TokenSplit:
        return self._split("train")

    @cached_property
    def validation(self) -> TokenSplit:
        return self._split("validation")

    @property
    def pad_id(self) -> int:
        return int(self.manifest["pad_id"])

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    def _split(self, split: str) -> TokenSplit:
        return TokenSplit(self.folder / "tokens", [s for s in self.manifest["shards"] if s["split"] == split])


class TrainBatches:
    """Training batches in shuffled order, epoch after epoch: each a pure function of (seed, step).

    An epoch is each sequence once; where the batch size does not divide it, a batch takes the end of one epoch and the
    start of the next, which is shuffled again.
    """

    def __init__(
        self, data: TokenData, *, sequences: str, sequence_length: int, global_batch_size: int, seed: int
    ) -> None:
        self._split = data.train
        self._layout = SEQUENCES[sequences]
        self._length = sequence_length
        self._rows = global_batch_size
        self._seed = seed
        self._pad_id = data.pad_id
        self.sequences = self._layout.count(self._split, sequence_length)
        if self.sequences == 0:
            raise ValueError(
                f"data.sequence_length {sequence_length}: the training text ({self._split.tokens} tokens) does not "
                "fill one sequence; add text or lower it"
            )

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """Batch of a step (0, 1, 2, ...), or the rows of it that a rank or a micro-batch needs."""
        sequences = [self._layout.read(self._split, self._length, int(index)) for index in self.indices(step)[rows]]
        return Batch.of(sequences, length=self._length, pad_id=self._pad_id)

    def indices(self, step: int) -> Int64:
        ordinal = np.arange(step * self._rows, (step + 1) * self._rows, dtype=np.int64)
        epochs, places = np.divmod(ordinal, self.sequences)
        parts = [
            permute(places[epochs == epoch], size=self.sequences, seed=self._seed, epoch=int(epoch))
            for epoch in np.unique(epochs)
        ]
        return np.concatenate(parts)


class ValidationSet:
    """One half of the fixed validation set: the same target tokens at any batch size and on any number of ranks.

    The validation documents are dealt alternately to the two halves, from the start, until each half has its share of
    `tokens` target tokens (or the text ends). Within a half the sequences are those of training, but for two things:
    packed sequences overlap by one token, so that each token but the very first is a target exactly once, and the last
    sequence is cut short where the share is reached.
    """

    def __init__(self, data: TokenData, *, sequences: str, sequence_length: int, tokens: int, half: Half) -> None:
        share = tokens // 2 if half == "report" else tokens - tokens // 2
        documents = range(0 if half == "selection" else 1, data.validation.documents, 2)
        self._length = sequence_length
        self._pad_id = data.pad_id
        self._sequences = list(
            SEQUENCES[sequences].cut((data.validation.document(i) for i in documents), sequence_length, share)
        )
        self.target_tokens = sum(len(sequence) - 1 for sequence in self._sequences)
        if self.target_tokens == 0:
            raise ValueError(
                f"the {half} half of the validation set is empty: the validation text has {data.validation.documents} "
                "documents, at least 2 are needed"
            )

    def __len__(self) -> int:
        return len(self._sequences)

    def batches(self, batch_size: int, *, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Batches of `batch_size` sequences, the last one smaller; of every `world_size`-th sequence from `rank` on."""
        mine = self._sequences[rank::world_size]
        for start in range(0, len(mine), batch_size):
            yield Batch.of(mine[start : start + batch_size], length=self._length, pad_id=self._pad_id)

    def target_counts(self, vocab_size: int) -> Int64:
        """How often each token number is a target."""
        targets = np.concatenate([sequence[1:] for sequence in self._sequences])
        return np.bincount(targets, minlength=vocab_size)


def _allow_files(count: int) -> None:
    """Let this process open so many files. Many systems allow 1,024 at first; C4 has 1,032 shards of two files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ValueError(f"the data need {count} open files, but this system allows {hard}; raise  ulimit -Hn  to that")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _check(path: Path, expected: dict[str, Any], verify: bool) -> None:
    size = path.stat().st_size if is_there(path) else None
    if size != expected["bytes"]:
        found = "is missing" if size is None else f"has {size} bytes"
        raise ValueError(f"{path}: {found}, the manifest says {expected['bytes']} bytes; run  mpadam data  again")
    if verify and sha256(path) != expected["sha256"]:
        raise ValueError(f"{path}: its SHA-256 is not the manifest's; run  mpadam data  again")
