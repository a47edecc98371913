"""`mpadam tokenize`: the second stage of a study's data, one shard a job."""

from __future__ import annotations

import argparse

from mpadam.commands.data import add_study_arguments, log, study_sections

HELP = (
    "Tokenize one shard (the second stage of mpadam data): validation shards first, training shards then in any order."
)
EXAMPLE = "mpadam tokenize --config config.yaml --out results/paper/data --shard train-00000-of-01024"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser)
    parser.add_argument("--shard", required=True, metavar="NAME", help="e.g. validation-00000-of-00008")


def run(args: argparse.Namespace) -> int:
    from mpadam.data.stages import tokenize_one

    data, _ = study_sections(args)
    tokenize_one(data, args.shard, args.out, log=log)
    return 0
