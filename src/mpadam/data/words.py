"""Documents to token numbers, each word encoded once: the numbers of the tokenizer itself, several times as fast.

English text repeats its words, and the library encodes each of them anew. For two kinds of tokenizer a text may be cut
at a space without changing a token: `_joint` states when, and why. The encodings of the words between cuts are kept;
for every other tokenizer the library encodes the text. The first documents of each shard are encoded both ways and
compared.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tokenizers

from mpadam.data.tokenizer import TextTokenizer

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
