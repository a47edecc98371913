"""Sections `data` and `tokenizer` of the configuration: the text, and what cuts it into tokens."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mpadam.study.section import PathText, PositiveInt, Section


def _commit(revision: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(f"revision {revision!r} is no commit: write its 40 hexadecimal digits, since branches move")
    return revision


Commit = Annotated[str, AfterValidator(_commit)]
# Commits known to be there; of a configuration's example.
C4_REVISION = "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
LLAMA_TOKENIZER_REVISION = "d02ad6cb9dd2c2296a6332199fa2fdca5938fef0"
_KEYS_OF_SOURCES = {
    "path": ("c4_folder", "/data/c4"),
    "revision": ("c4_hub", C4_REVISION),
    "path_train": ("saved_dataset", "/data/c4_train"),
    "path_validation": ("saved_dataset", "/data/c4_validation"),
}


class DataConfig(Section):
    """Text, and how sequences are cut from it (paper.md section 4)."""

    source: Literal["builtin", "c4_folder", "c4_hub", "saved_dataset"]
    path: PathText | None = Field(None, description="folder that holds en/c4-train.*.json.gz (c4_folder)")
    path_train: PathText | None = Field(None, description="folder made by datasets.save_to_disk (saved_dataset)")
    path_validation: PathText | None = Field(None, description="the same, of validation text (saved_dataset)")
    revision: Commit | None = Field(None, description="commit of allenai/c4 on the hub (c4_hub)")
    downloads: PathText = Field(
        "downloads", description="folder that keeps what is fetched from the hub, for all studies"
    )
    downloads_at_once: PositiveInt = Field(4, description="files fetched at the same time by the whole workflow")
    train_shards: PositiveInt | None = Field(
        None,
        description="training shards to use, from the first on (C4); null: what the largest budget needs (c4_hub), "
        "all there are (c4_folder)",
    )
    shard_jobs: bool | None = Field(
        None, description="a job a shard, in place of one job for all; null: for c4_hub, which has no other way"
    )
    sequences: Literal["pack", "truncate_pad"] = Field(
        "truncate_pad", description="truncate_pad: a document a sequence, cut or padded; pack: documents end to end"
    )
    sequence_length: Annotated[int, Field(ge=2)] = 256
    validation_tokens: PositiveInt = Field(10_000_000, description="tokens in the fixed validation set, at most")
    epochs: PositiveInt = Field(1, description="how often the largest budget may pass over the training text")

    @property
    def by_shard(self) -> bool:
        """Whether each shard is a job of its own."""
        return self.source == "c4_hub" if self.shard_jobs is None else self.shard_jobs

    @model_validator(mode="after")
    def _keys_of_the_source(self) -> DataConfig:
        for key, (source, example) in _KEYS_OF_SOURCES.items():
            given = getattr(self, key) is not None
            if given and self.source != source:
                raise ValueError(f"{key} is for source {source!r}, and this is {self.source!r}: write  {key}: null")
            if not given and self.source == source:
                raise ValueError(f"source {source!r} needs a {key}, e.g.  {key}: {example}")
        return self

    @model_validator(mode="after")
    def _shards_of_the_source(self) -> DataConfig:
        if self.train_shards is not None and not self.source.startswith("c4"):
            raise ValueError(f"train_shards is for C4; {self.source!r} is used whole: write  train_shards: null")
        if self.source == "c4_hub" and self.shard_jobs is False:
            raise ValueError("source 'c4_hub' is fetched and tokenized by a job a shard; write  shard_jobs: null")
        return self


class TokenizerConfig(Section):
    """`bpe`: byte-level BPE trained on the study's training text. `folder`, `hub`: a saved tokenizer."""

    source: Literal["bpe", "folder", "hub"]
    vocab_size: Annotated[int, Field(ge=258)] | None = Field(None, description="size of the trained vocabulary (bpe)")
    path: PathText | None = Field(None, description="folder with tokenizer.json (folder)")
    repo: str | None = Field(None, description="name on the hub, e.g. hf-internal-testing/llama-tokenizer (hub)")
    revision: Commit | None = Field(None, description="commit of that repository (hub)")
    eos_token: str | None = Field(
        None, description="end-of-text token, where the tokenizer's own files name none (folder, hub)"
    )

    @model_validator(mode="after")
    def _one_of(self) -> TokenizerConfig:
        examples: dict[str, dict[str, object]] = {
            "bpe": {"vocab_size": 1024},
            "folder": {"path": "/data/tokenizers/llama"},
            "hub": {"repo": "hf-internal-testing/llama-tokenizer", "revision": LLAMA_TOKENIZER_REVISION},
        }
        needed = examples[self.source]
        for key in ("vocab_size", "path", "repo", "revision"):
            if key in needed and getattr(self, key) is None:
                raise ValueError(f"source {self.source!r} needs {key}, e.g.  {key}: {needed[key]}")
            if key not in needed and getattr(self, key) is not None:
                raise ValueError(f"source {self.source!r} takes no {key}: write  {key}: null")
        if self.source == "bpe" and self.eos_token is not None:
            raise ValueError("source 'bpe' has an end-of-text token of its own: write  eos_token: null")
        return self
