"""Documents to token numbers, each word encoded once: the same numbers as the tokenizer's own, several times as fast.

English text repeats its words, and the library's time goes into each one anew. For two kinds of tokenizer a text may be
cut at a space without changing a token: `_joint` states when, and why. Words between cuts are kept with their encoding;
every other tokenizer takes the library's own way. The first documents of each shard are encoded both ways and compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from mpadam.data.tokenizer import TextTokenizer

WORDS_KEPT = 2**19  # about 120 MB; then all are forgotten, and the frequent ones come back first
LONGEST_KEPT = 64  # characters: longer words hardly ever come twice
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


@dataclass(frozen=True)
class _Joint:
    """How the words of a text are encoded one by one.

    first, other: what the first word, and each other one, is given in front (its space).
    mark: what a space inside a word becomes.
    """

    first: str
    other: str
    mark: str


def encoder(tokenizer: TextTokenizer, dtype: str) -> Encode:
    """What turns texts into token numbers without EOS, as bytes of `dtype`: equal to `tokenizer.encode`."""
    content = json.loads(tokenizer.backend.to_str())
    joint = _joint(content)
    if joint is None:
        return lambda texts: [_bytes(numbers, dtype) for numbers in tokenizer.encode(texts)]
    return _Compared(tokenizer, _words(content, joint, dtype), dtype)


def _joint(content: dict[str, Any]) -> _Joint | None:
    """Where a text may be cut, if this tokenizer lets it be cut at all.

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
        return _Joint(first="", other=" ", mark=" ")
    if content["normalizer"] == _PREPEND_AND_MARK and content["pre_tokenizer"] is None and _starts_only(model):
        return _Joint(first=_MARK, other=_MARK, mark=_MARK)
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


def _words(content: dict[str, Any], joint: _Joint, dtype: str) -> Encode:
    backend = tokenizers.Tokenizer.from_str(json.dumps({**content, "normalizer": None}))
    backend.encode_special_tokens = True

    def encode(text: str) -> bytes:
        return _bytes(backend.encode(text, add_special_tokens=False).ids, dtype)

    first = _Known(encode, joint.first, joint.mark)
    other = first if joint.first == joint.other else _Known(encode, joint.other, joint.mark)

    def document(text: str) -> bytes:
        if not text:
            return b""
        head, *tail = _CUT.split(text)
        return b"".join([first[head], *map(other.__getitem__, tail)])

    return lambda texts: [document(text) for text in texts]


class _Known(dict[str, bytes]):
    """Encodings of words, made when first asked for."""

    def __init__(self, encode: Callable[[str], bytes], front: str, mark: str) -> None:
        super().__init__()
        self._encode, self._front, self._mark = encode, front, mark

    def __missing__(self, word: str) -> bytes:
        numbers = self._encode(self._front + word.replace(" ", self._mark))
        if len(self) >= WORDS_KEPT:
            self.clear()
        if len(word) <= LONGEST_KEPT:
            self[word] = numbers
        return numbers


class _Compared:
    """Words' encodings, held against the tokenizer's own for the first documents."""

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
