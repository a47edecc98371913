"""Small text for tests of the data room: shards in C4's layout, tokenizer folders, all invented here."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mpadam.data import TokenData
from mpadam.data.stages import prepare
from mpadam.study.text import DataConfig, TokenizerConfig

VERBS = ["rounds", "moves", "adds", "scales", "forgets", "keeps"]
WORDS = ["weight", "gradient", "moment", "update", "exponent", "mantissa", "tensor", "block", "rate", "noise", *VERBS]


def quiet(line: str) -> None:
    pass


def documents(count: int, *, seed: int = 0, longest: int = 60) -> list[str]:
    """Different documents of 1 to `longest` words."""
    draw = random.Random(seed)
    return [
        f"Text {seed}-{number} " + " ".join(draw.choices(WORDS, k=draw.randint(1, longest))) + "."
        for number in range(count)
    ]


def write_shard(folder: Path, name: str, texts: Iterable[str]) -> Path:
    """A shard `en/c4-<name>.json.gz`, e.g. name = 'train.00000-of-01024'."""
    path = folder / "en" / f"c4-{name}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": text, "url": "http://a.b", "timestamp": "2019-04-25T12:57:54Z"}) for text in texts]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    return path


def write_c4(folder: Path, *, train: list[list[str]] | None = None, validation: list[str] | None = None) -> Path:
    """A folder with two training shards (or the given ones) and one validation shard."""
    for number, texts in enumerate(train or [documents(120, seed=1), documents(80, seed=2)]):
        write_shard(folder, f"train.{number:05d}-of-01024", texts)
    write_shard(folder, "validation.00000-of-00008", validation or documents(40, seed=3))
    return folder


def c4_config(folder: Path, **changes: Any) -> DataConfig:
    return DataConfig.model_validate(
        {"source": "c4_folder", "path": str(folder), "sequences": "pack", "sequence_length": 16, **changes}
    )


def bpe(vocab_size: int = 300) -> TokenizerConfig:
    return TokenizerConfig(source="bpe", vocab_size=vocab_size)


def prepared(folder: Path, *, tokenizer: TokenizerConfig | None = None, **changes: Any) -> TokenData:
    """Token data of `folder`/text, which is written where it is not there, in `folder`/data."""
    text = folder / "text"
    if not text.exists():
        write_c4(text)
    prepare(c4_config(text, **changes), tokenizer or bpe(), folder / "data", log=quiet)
    return TokenData.open(folder / "data", verify=True)


def own_encoding(folder: Path, texts: Iterable[str], eos: int = 1) -> list[list[int]]:
    """What each document must have become, by the saved tokenizer alone."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    return [[*tokenizer.encode(text, add_special_tokens=False).ids, eos] for text in texts]


def files_below(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with their content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
