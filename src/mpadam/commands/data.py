"""`mpadam data`: a study's text, tokenizer and token files, in one job."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "Prepare a study's data: text, tokenizer, token files, manifest."
EXAMPLE = "mpadam data --config config.yaml --config studies/smoke.yaml --out results/smoke/data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> int:
    from mpadam.data.prepare import prepare
    from mpadam.data.request import from_config, from_json

    data, tokenizer = from_json(args.request) if args.request is not None else from_config(args.config)
    manifest = prepare(data, tokenizer, args.out, log=lambda line: print(line, flush=True))
    train, targets = manifest["train"], manifest["validation_set"]["target_tokens"]
    print(
        f"{args.out}: {train['documents']:,} training documents, {train['tokens']:,} tokens, "
        f"{manifest['train_sequences']:,} sequences ({train['padding_share']:.1%} padding); "
        f"validation {targets:,} target tokens, unigram entropy {manifest['unigram_entropy']:.3f} nats"
    )
    return 0
