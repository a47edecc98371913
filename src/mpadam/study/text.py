"""Sections `data` and `tokenizer` of the configuration: the text, and what cuts it into tokens."""

import re
from typing import Annotated, Literal, Self

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
    """The text, and how sequences are cut from it (docs/data.md).

    Paths may begin with `~` and contain `${VARIABLE}`; both are replaced where Snakemake runs.
    """

    source: Literal["builtin", "c4_folder", "c4_hub", "saved_dataset"] = Field(
        description="Where the text comes from: docstrings of installed packages (`builtin`, for seeing the "
        "pipeline work), a folder in C4's layout, C4 from the Hugging Face hub, or folders made by "
        "`datasets.save_to_disk`."
    )
    path: PathText | None = Field(
        None,
        description="Folder that contains `en/c4-train.*.json.gz` and `en/c4-validation.*.json.gz`; needed by, and "
        "only valid with, `source: c4_folder`.",
    )
    path_train: PathText | None = Field(
        None,
        description="Folder with the training text, made by `datasets.save_to_disk`; needed by, and only valid "
        "with, `source: saved_dataset`.",
    )
    path_validation: PathText | None = Field(
        None,
        description="Folder with the validation text, made in the same way; needed by, and only valid with, "
        "`source: saved_dataset`.",
    )
    revision: Commit | None = Field(
        None,
        description="Commit of allenai/c4 on the hub, as 40 hexadecimal digits; needed by, and only valid with, "
        "`source: c4_hub`. An overlay with another source sets it to `null`.",
    )
    downloads: PathText = Field(
        "downloads",
        description="Folder for files fetched from the hub. All studies share it; it may be outside the repository.",
    )
    downloads_at_once: PositiveInt = Field(
        4,
        description="Largest number of files that the workflow fetches at the same time. Lower it if the server "
        "refuses requests.",
    )
    train_shards: PositiveInt | None = Field(
        None,
        description="Number of training shards of C4 to use, counted from the first. `null` means as many as the "
        "largest budget needs (`c4_hub`) or all in the folder (`c4_folder`). Another number changes the order of all "
        "the text, so set it in advance for a study that will grow to larger budgets.",
    )
    shard_jobs: bool | None = Field(
        None,
        description="Whether each shard of text is tokenized by a job of its own instead of one job for all. `null` "
        "means true for `c4_hub`, which has no other way, and false otherwise; true is for large local folders.",
    )
    sequences: Literal["pack", "truncate_pad"] = Field(
        "truncate_pad",
        description="How documents become sequences: `truncate_pad` cuts or pads each document to one sequence, as "
        "the paper's protocol does in our reading; `pack` puts documents end to end and wastes no position.",
    )
    sequence_length: Annotated[int, Field(ge=2)] = Field(
        256, description="Positions per sequence, in tokens. The default is the paper's."
    )
    validation_tokens: PositiveInt = Field(
        10_000_000,
        description="Largest number of target tokens in the fixed validation set; less text gives fewer. Half of it "
        "selects hyper-parameters, the other half is reported on. The default is the paper's.",
    )
    epochs: PositiveInt = Field(
        1, description="Largest number of passes over the training text. A budget that would need more is refused."
    )

    @property
    def by_shard(self) -> bool:
        """Whether each shard is a job of its own."""
        return self.source == "c4_hub" if self.shard_jobs is None else self.shard_jobs

    @model_validator(mode="after")
    def _keys_of_the_source(self) -> Self:
        for key, (source, example) in _KEYS_OF_SOURCES.items():
            given = getattr(self, key) is not None
            if given and self.source != source:
                raise ValueError(f"{key} is for source {source!r}, and this is {self.source!r}: write  {key}: null")
            if not given and self.source == source:
                raise ValueError(f"source {source!r} needs a {key}, e.g.  {key}: {example}")
        return self

    @model_validator(mode="after")
    def _shards_of_the_source(self) -> Self:
        if self.train_shards is not None and not self.source.startswith("c4"):
            raise ValueError(f"train_shards is for C4; {self.source!r} is used whole: write  train_shards: null")
        if self.source == "c4_hub" and self.shard_jobs is False:
            raise ValueError("source 'c4_hub' is fetched and tokenized by one job per shard; write  shard_jobs: null")
        return self


class TokenizerConfig(Section):
    """The tokenizer: trained on the study's text, or a saved one (docs/data.md)."""

    source: Literal["bpe", "folder", "hub"] = Field(
        description="`bpe` trains a byte-level BPE on the study's training text; `folder` reads a saved tokenizer "
        "from disk; `hub` fetches one from the Hugging Face hub."
    )
    vocab_size: Annotated[int, Field(ge=258)] | None = Field(
        None,
        description="Number of tokens of the trained vocabulary, of which 258 are the bytes and two special tokens; "
        "needed by, and only valid with, `source: bpe`.",
    )
    path: PathText | None = Field(
        None, description="Folder with `tokenizer.json`; needed by, and only valid with, `source: folder`."
    )
    repo: str | None = Field(
        None,
        description="Repository on the hub, for example `hf-internal-testing/llama-tokenizer`; needed by, and only "
        "valid with, `source: hub`.",
    )
    revision: Commit | None = Field(
        None,
        description="Commit of that repository, as 40 hexadecimal digits; needed by, and only valid with, `source: "
        "hub`.",
    )
    eos_token: str | None = Field(
        None,
        description="End-of-text token of a saved tokenizer (`folder`, `hub`), written after each document. `null` "
        "means the one that the tokenizer's own files name.",
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
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
