"""Text to token numbers: a byte-level BPE trained on the study's own text, or a saved Hugging Face tokenizer, from a
folder or from the hub at a commit (fetched by `mpadam download`, data/download.py).

Only `tokenizer.json` and the names of EOS and padding are used, through the `tokenizers` package; transformers is not
imported. A document is encoded without the tokens that a post-processor would add (BOS, EOS), text that looks like a
special token stays text, and exactly one EOS follows each document. The folder written here is one that
`transformers.AutoTokenizer.from_pretrained` loads.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from mpadam.atomic import write_bytes, write_json, write_text
from mpadam.canonical import sha256_of
from mpadam.presence import is_there
from mpadam.stored import read_object
from mpadam.study.text import TokenizerConfig

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
