"""Token files: for each shard of text a folder with two flat arrays and a manifest.

    tokens/<shard>/tokens.bin   token numbers, documents end to end, each ended by EOS (uint16, or uint32 above 65,536)
    tokens/<shard>/ends.bin     for each document the position after its last token (uint64)
    tokens/<shard>/digests.bin  validation shards only: 16 bytes per document, to keep it out of training text
    tokens/<shard>/shard.json   counts, dtype, checksums, tokenizer, where the text came from

All little-endian. A folder is made under a temporary name and renamed when complete; without shard.json it is no data.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mpadam.atomic import remove, sync, write_json
from mpadam.data.text import TextShard
from mpadam.data.tokenizer import Encode, TextTokenizer, encoder
from mpadam.presence import is_there
from mpadam.stored import read_object, sha256, stored

FORMAT = 1
BATCH_BYTES = 1_000_000  # of text encoded at once: bounds memory, whatever the shard's size
REPORT_EVERY = 64e6  # bytes of text
DIGEST_BYTES = 16
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass
class Counts:
    """What became of the documents of a shard: read = documents + empty + duplicates."""

    read: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0  # UTF-8, of the documents kept
    empty: int = 0  # only blanks, or nothing that the tokenizer keeps
    duplicates: int = 0  # equal to a validation document, left out of training
    repaired: int = 0  # had a lone surrogate, now U+FFFD
    separators_removed: int = 0  # had an EOS inside


def token_dtype(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 2**16 else "<u4"


def digest(content: bytes) -> bytes:
    """A name for a document, from its UTF-8."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def utf8(text: str) -> tuple[bytes, bool]:
    """A text's UTF-8, with U+FFFD for each lone surrogate (which UTF-8 cannot encode), and whether there was any."""
    try:
        return text.encode(), False
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text).encode(), True


def digests_of(texts: Iterable[str]) -> frozenset[bytes]:
    """Digests of documents, as `tokenize_shard` wants them for `held_out`."""
    return frozenset(digest(utf8(text)[0]) for text in texts)


def read_digests(folder: Path) -> frozenset[bytes]:
    content = (folder / "digests.bin").read_bytes()
    return frozenset(content[i : i + DIGEST_BYTES] for i in range(0, len(content), DIGEST_BYTES))


def held_out_hash(digests: frozenset[bytes]) -> str:
    """A checksum of a set of held-out documents, equal for two shards that left out the same ones."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()[:16]


def tokenize_shard(
    shard: TextShard,
    tokenizer: TextTokenizer,
    folder: Path,
    *,
    held_out: frozenset[bytes] = frozenset(),
    report: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Write `folder`/<shard name> and return its manifest.

    held_out: digests of the validation documents; a training document among them is counted and left out.
    report: called with the bytes of text encoded so far, every REPORT_EVERY bytes and at the end.
    Raises ValueError (of the source) for text that cannot be read; nothing of the shard is then left.
    """
    target = folder / shard.name
    temporary = folder / f".{shard.name}.partial"  # left by a killed job, deleted by the next one
    remove(temporary)
    temporary.mkdir(parents=True)
    try:
        manifest = _write(shard, tokenizer, temporary, held_out if shard.split == "train" else frozenset(), report)
        write_json(temporary / "shard.json", manifest)
        remove(target)
        temporary.replace(target)
    finally:
        remove(temporary)
    return manifest


def read_shard_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a token shard.

    Raises ValueError when the folder has none, or another version's.
    """
    missing = f"{folder}: no shard.json, so these are no finished token files; run  mpadam tokenize  again"
    keys = ("counts", "files", "source", "split", "tokenizer_fingerprint")
    return read_manifest(folder / "shard.json", *keys, missing=missing, remedy="run  mpadam tokenize  again")


def read_manifest(path: Path, *keys: str, missing: str, remedy: str) -> dict[str, Any]:
    """The manifest in a file, with at least these keys.

    Raises ValueError when there is none (`missing`), or it is damaged or another version's (`remedy`).
    """
    if not is_there(path):
        raise ValueError(missing)
    manifest = read_object(path, remedy=remedy)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path}: format {manifest.get('format')}, this version reads {FORMAT}; {remedy}")
    with stored(path, remedy=remedy):
        _ = [manifest[key] for key in keys]
    return manifest


def _write(
    shard: TextShard,
    tokenizer: TextTokenizer,
    folder: Path,
    held_out: frozenset[bytes],
    report: Callable[[int], None],
) -> dict[str, Any]:
    counts, dtype, reported = Counts(), token_dtype(tokenizer.vocab_size), 0
    encode = encoder(tokenizer, dtype)
    names = ["tokens.bin", "ends.bin", *(["digests.bin"] if shard.split == "validation" else [])]
    paths = [folder / name for name in names]
    with ExitStack() as stack:
        files = {path.name: stack.enter_context(path.open("wb")) for path in paths}
        for batch in _batches(shard.open(), counts, held_out):
            _append(batch, encode, np.asarray(tokenizer.eos_id, dtype), counts, files)
            if counts.text_bytes - reported >= REPORT_EVERY:
                reported = counts.text_bytes
                report(reported)
        for file in files.values():
            file.flush()
            sync(file.fileno())
    report(counts.text_bytes)
    assert counts.read == counts.documents + counts.empty + counts.duplicates
    return {
        "format": FORMAT,
        "name": shard.name,
        "split": shard.split,
        "dtype": dtype,
        "counts": asdict(counts),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "held_out": held_out_hash(held_out),
        "source": shard.receipt(),
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in paths},
    }


def _batches(text: Iterator[str], counts: Counts, held_out: frozenset[bytes]) -> Iterator[list[bytes]]:
    """UTF-8 of the documents to encode, about BATCH_BYTES at a time."""
    batch: list[bytes] = []
    size = 0
    for document in text:
        counts.read += 1
        content, repaired = utf8(document)
        counts.repaired += repaired
        if not document.strip():
            counts.empty += 1
        elif held_out and digest(content) in held_out:
            counts.duplicates += 1
        else:
            batch.append(content)
            size += len(content)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _append(
    batch: list[bytes], encode: Encode, eos: npt.NDArray[Any], counts: Counts, files: Mapping[str, BinaryIO]
) -> None:
    tokens, ends, digests = [], [], []
    for content, numbers in zip(batch, encode([content.decode() for content in batch]), strict=True):
        ids = np.frombuffer(numbers, eos.dtype)
        inner = ids == eos
        if inner.any():
            counts.separators_removed += 1
            ids = ids[~inner]
        if not ids.size:
            counts.empty += 1
            continue
        counts.documents += 1
        counts.tokens += ids.size + 1
        counts.text_bytes += len(content)
        tokens += [ids.tobytes(), eos.tobytes()]
        ends.append(counts.tokens)
        digests.append(digest(content))
    files["tokens.bin"].write(b"".join(tokens))
    files["ends.bin"].write(np.asarray(ends, dtype="<u8").tobytes())
    if "digests.bin" in files:
        files["digests.bin"].write(b"".join(digests))
