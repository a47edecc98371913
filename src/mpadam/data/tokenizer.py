"""Text to token numbers: a byte-level BPE trained on the study's own text, or a saved Hugging Face tokenizer, from a
folder or from the hub at a commit (fetched by `mpadam download`, data/download.py; nothing here opens a connection).

    downloads/tokenizers/<owner>--<name>/<commit>/{tokenizer.json, ..., receipt.json}

Only `tokenizer.json` and the names of EOS and padding are used, through the `tokenizers` package; transformers is not
imported. A document is encoded without the tokens that a post-processor would add (BOS, EOS), text that looks like a
special token stays text, and exactly one EOS follows each document. The folder written here is one that
`transformers.AutoTokenizer.from_pretrained` loads.

`encoder` encodes each word once: the numbers of the tokenizer itself, several times as fast. English text repeats its
words, and the library encodes each of them again. For two kinds of tokenizer a text may be cut at a space without
changing a token: `_joint` states when, and why. The encodings of the words between cuts are kept; for every other
tokenizer the library encodes the text. The first documents of each shard are encoded both ways and compared.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from mpadam.atomic import write_bytes, write_json, write_text
from mpadam.canonical import sha256_of
from mpadam.presence import is_there
from mpadam.stored import read_object, sha256, stored
from mpadam.study.text import DataConfig, TokenizerConfig

PAD, EOS = "<pad>", "</s>"
_AGAIN = "save the tokenizer again"
# Merges are learned from the text's first 256 MB: more changes few of them and costs memory.
TRAINING_CHARACTERS = 2**28
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# So many characters without a blank are no word; learning from them, one merge at a time, would take minutes.
_NO_WORD = re.compile(r"\S{1000,}")
# Parts of tokenizer.json that change no number here: they act only on what is added to a text or cut off it.
_UNUSED = ("truncation", "padding", "post_processor")


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer, and the facts about it that training needs.

    eos_id: ends each document. pad_id: fills rows where nothing counts (EOS where the tokenizer has no padding).
    vocab_size: rows of the embedding: the largest number plus one. fingerprint: of all that changes an encoding.
    """

    backend: tokenizers.Tokenizer
    eos_id: int
    pad_id: int
    vocab_size: int
    fingerprint: str

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Numbers of each text, without EOS; the same at any number of threads."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=False))


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> tokenizers.Tokenizer:
    """A byte-level BPE with `<pad>` (0) and `</s>` (1, the EOS): the same bytes for the same texts.

    Raises ValueError when the text is too small for `vocab_size`.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_beginning(texts), trainer)
    if (size := backend.get_vocab_size()) < vocab_size:
        raise ValueError(
            f"tokenizer.vocab_size: the training text supports {size} tokens, not {vocab_size}; "
            f"write  vocab_size: {size}"
        )
    return backend


def save_bpe(backend: tokenizers.Tokenizer, folder: Path) -> None:
    """Write a tokenizer made by `train_bpe` as a folder that `transformers` can load."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "tokenizer.json", backend.to_str(pretty=True) + "\n")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
    write_json(folder / "tokenizer_config.json", {**config, "clean_up_tokenization_spaces": False})


def copy_tokenizer(source: Path, folder: Path, *, eos_token: str | None = None) -> None:
    """Copy the files of a saved tokenizer that loading it needs; `eos_token` replaces its end-of-text token."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if is_there(source / name):
            write_bytes(folder / name, (source / name).read_bytes())
    if eos_token is not None:
        path = folder / "tokenizer_config.json"
        write_json(path, {**read_object(path, remedy=_AGAIN), "eos_token": eos_token})


def load_tokenizer(folder: Path, *, eos_token: str | None = None) -> TextTokenizer:
    """Read a tokenizer folder; `eos_token` overrides the end-of-text token that the folder names.

    Raises ValueError when it has no readable tokenizer.json, names no EOS, or names one that is not in its vocabulary.
    """
    path = folder / "tokenizer.json"
    if not is_there(path):
        raise ValueError(
            f"tokenizer.path: {folder} has no tokenizer.json; save the tokenizer there with "
            "transformers.AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        )
    text = path.read_text(encoding="utf-8")
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"{path}: not a tokenizer ({error})") from None
    eos_id = _special(backend, folder, "eos_token") if eos_token is None else backend.token_to_id(eos_token)
    if eos_id is None and eos_token is not None:
        raise ValueError(f"tokenizer.eos_token: {eos_token!r} is not in the vocabulary of {path}")
    if eos_id is None:
        raise ValueError(
            f"tokenizer: {folder} names no end-of-text token, and documents must be separated; write e.g.  "
            "eos_token: </s>  in the section tokenizer, or name it in the folder's tokenizer_config.json"
        )
    pad_id = _special(backend, folder, "pad_token")
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    return TextTokenizer(
        backend=backend,
        eos_id=eos_id,
        pad_id=eos_id if pad_id is None else pad_id,
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        fingerprint=_fingerprint(text, eos_id),
    )


def tokenizer_identity(config: TokenizerConfig) -> dict[str, Any]:
    """What the configuration and the folder tell about the tokenizer: equal for equal encodings."""
    if config.source == "hub":
        return config.model_dump(include={"source", "repo", "revision", "eos_token"}, exclude_none=True)
    if config.source == "folder":
        assert config.path is not None
        fingerprint = load_tokenizer(Path(config.path), eos_token=config.eos_token).fingerprint
        return {"source": "folder", "fingerprint": fingerprint}
    return {"source": "bpe", "vocab_size": config.vocab_size}


def _beginning(texts: Iterable[str]) -> Iterator[str]:
    """The first TRAINING_CHARACTERS of the text, without endless words."""
    left = TRAINING_CHARACTERS
    for text in texts:
        if left <= 0:
            return
        left -= len(text)
        yield _NO_WORD.sub(" ", text)


def _special(backend: tokenizers.Tokenizer, folder: Path, key: str) -> int | None:
    """Number of the special token that the folder's configuration calls `key`, None where it names none."""
    for path in (folder / name for name in FILES[1:]):
        token = read_object(path, remedy=_AGAIN).get(key)
        content = token.get("content") if isinstance(token, dict) else token
        if content is not None:
            number = backend.token_to_id(content)
            if number is None:
                raise ValueError(f"{path}: {key} is {content!r}, which is not in the vocabulary of tokenizer.json")
            return int(number)
    return None


def _fingerprint(text: str, eos_id: int) -> str:
    content = {key: value for key, value in json.loads(text).items() if key not in _UNUSED}
    return sha256_of({"tokenizer": content, "eos_id": eos_id})[:16]


# --- from the hub -----------------------------------------------------------------------------------------------------


def tokenizer_receipt(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """The receipt of the tokenizer's files, which are in the same folder."""
    assert tokenizer.repo is not None
    assert tokenizer.revision is not None
    return Path(data.downloads) / "tokenizers" / tokenizer.repo.replace("/", "--") / tokenizer.revision / "receipt.json"


def fetched_tokenizer(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """The folder with the tokenizer's files.

    Raises ValueError where they are not here, or not what was fetched.
    """
    receipt = tokenizer_receipt(data, tokenizer)
    if not is_there(receipt):
        raise ValueError(f"{receipt}: not here; run  mpadam download --tokenizer  first")
    with stored(receipt, remedy="delete it; run  mpadam download --tokenizer  again"):
        expected = {name: known["sha256"] for name, known in json.loads(receipt.read_bytes())["files"].items()}
    for name, checksum in expected.items():
        if sha256(receipt.with_name(name)) != checksum:
            raise ValueError(
                f"{receipt.with_name(name)}: not the file that was fetched; run  mpadam download --tokenizer  again"
            )
    return receipt.parent


# --- each word once ---------------------------------------------------------------------------------------------------


WORDS_KEPT = 2**19  # about 120 MB; when full, it is emptied, and the frequent words are the first to return
LONGEST_KEPT = 64  # characters: longer words are hardly ever repeated
COMPARED = 50  # documents of each shard

# A space after anything but white space and the sign that stands for a space.
_CUT = re.compile("(?<=[^\\s\u2581]) ")
_MARK = "\u2581"
_PREPEND_AND_MARK = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": _MARK},
        {"type": "Replace", "pattern": {"String": " "}, "content": _MARK},
    ],
}
_BYTES = [f"<0x{number:02X}>" for number in range(256)]

Encode = Callable[[list[str]], list[bytes]]


def encoder(tokenizer: TextTokenizer, dtype: str) -> Encode:
    """A function from texts to token numbers without EOS, as bytes of `dtype`; the numbers are `tokenizer.encode`'s."""
    content = json.loads(tokenizer.backend.to_str())
    joint = _joint(content)
    if joint is None:
        return lambda texts: [_bytes(numbers, dtype) for numbers in tokenizer.encode(texts)]
    return _Compared(tokenizer, _words(content, *joint, dtype), dtype)


def _joint(content: dict[str, Any]) -> tuple[str, str] | None:
    """What the first word gets in front and what a space becomes, where a text may be cut at its spaces; else None.

    Byte-level BPE with GPT-2's pattern: no match of the pattern goes on past a character that is no white space into a
    space, so each such space starts a piece of its own. LLaMA's BPE (spaces become U+2581, no pieces before merging):
    if no entry of the vocabulary has U+2581 after another character, no merge reaches across the start of a word, and
    merges on either side do not see each other.
    """
    model = content["model"]
    plain = (
        model["type"] == "BPE"
        and not any(model[key] for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and not model.get("ignore_merges")
        and all(token["special"] for token in content["added_tokens"])
    )
    if not plain:
        return None
    if content["normalizer"] is None and _is_gpt2(content["pre_tokenizer"]):
        return "", " "
    if content["normalizer"] == _PREPEND_AND_MARK and content["pre_tokenizer"] is None and _starts_only(model):
        return _MARK, _MARK
    return None


def _is_gpt2(pre_tokenizer: dict[str, Any] | None) -> bool:
    return (
        pre_tokenizer is not None
        and pre_tokenizer["type"] == "ByteLevel"
        and pre_tokenizer.get("use_regex", True)
        and not pre_tokenizer["add_prefix_space"]
    )


def _starts_only(model: dict[str, Any]) -> bool:
    """Whether U+2581 only starts entries, and unknown characters (which may be fused into one) cannot occur."""
    vocabulary = model["vocab"]
    complete = model["byte_fallback"] and all(byte in vocabulary for byte in _BYTES)
    return complete and not any(_MARK in entry.lstrip(_MARK) for entry in vocabulary)


def _words(content: dict[str, Any], first: str, mark: str, dtype: str) -> Encode:
    """What encodes texts word by word; `first` and `mark` as `_joint` returns them."""
    backend = tokenizers.Tokenizer.from_str(json.dumps({**content, "normalizer": None}))
    backend.encode_special_tokens = True

    def encode(word: str) -> bytes:
        return _bytes(backend.encode(word.replace(" ", mark), add_special_tokens=False).ids, dtype)

    others = _Known(encode, mark)
    heads = others if first == mark else _Known(encode, first)

    def document(text: str) -> bytes:
        head, *tail = _CUT.split(text)
        return b"".join([heads[head], *map(others.__getitem__, tail)]) if text else b""

    return lambda texts: [document(text) for text in texts]


class _Known(dict[str, bytes]):
    """Encodings of words with `front` before them, computed when first asked for."""

    def __init__(self, encode: Callable[[str], bytes], front: str) -> None:
        super().__init__()
        self._encode, self._front = encode, front

    def __missing__(self, word: str) -> bytes:
        numbers = self._encode(self._front + word)
        if len(self) >= WORDS_KEPT:
            self.clear()
        if len(word) <= LONGEST_KEPT:
            self[word] = numbers
        return numbers


class _Compared:
    """Encodes word by word, and compares with the tokenizer itself for the first documents."""

    def __init__(self, tokenizer: TextTokenizer, words: Encode, dtype: str) -> None:
        self._tokenizer, self._words, self._dtype = tokenizer, words, dtype
        self._left = COMPARED

    def __call__(self, texts: list[str]) -> list[bytes]:
        encoded = self._words(texts)
        sample = texts[: self._left]
        self._left -= len(sample)
        for numbers, own in zip(encoded, self._tokenizer.encode(sample) if sample else [], strict=False):
            assert numbers == _bytes(own, self._dtype), "a word's encoding depends on its neighbours"
        return encoded


def _bytes(numbers: list[int], dtype: str) -> bytes:
    return np.asarray(numbers, dtype=dtype).tobytes()
