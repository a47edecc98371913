"""`mpadam data`: a study's text, tokenizer and token files, in one job; or the last stage alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpadam.study.config import DataConfig, TokenizerConfig

HELP = "Prepare a study's data: text, tokenizer, token files, manifest."
EXAMPLE = "mpadam data --config config.yaml --config studies/smoke.yaml --out results/smoke/data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser)
    parser.add_argument(
        "--assemble",
        action="store_true",
        help="only write the manifest of what mpadam tokenizer and mpadam tokenize left in the folder",
    )


def run(args: argparse.Namespace) -> int:
    from mpadam.data.prepare import prepare
    from mpadam.data.stages import assemble

    stage = assemble if args.assemble else prepare
    manifest = stage(*study_sections(args), args.out, log=log)
    train, targets = manifest["train"], manifest["validation_set"]["target_tokens"]
    log(
        f"{args.out}: {train['documents']:,} training documents, {train['tokens']:,} tokens, "
        f"{manifest['train_sequences']:,} sequences ({train['padding_share']:.1%} padding); "
        f"validation {targets:,} target tokens, unigram entropy {manifest['unigram_entropy']:.3f} nats"
    )
    return 0


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """What the commands of the data room share: which study, and its data folder."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--config",
        type=Path,
        action="append",
        metavar="FILE",
        help="study configuration; may be repeated, later ones win",
    )
    which.add_argument(
        "--request", metavar="JSON", help='the two sections themselves: {"data": {...}, "tokenizer": {...}}'
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="results/<study>/data")


def study_sections(args: argparse.Namespace) -> tuple[DataConfig, TokenizerConfig]:
    """The sections `data` and `tokenizer` that the arguments give."""
    from mpadam.data.request import from_config, from_json

    return from_json(args.request) if args.request is not None else from_config(args.config)


def log(line: str) -> None:
    print(line, flush=True)
