"""`mpadam tokenizer`: the first stage of a study's data alone."""

from __future__ import annotations

import argparse

from mpadam.commands.data import add_study_arguments, log, study_sections

HELP = "Train or copy a study's tokenizer (the first stage of mpadam data, as a separate job)."
EXAMPLE = "mpadam tokenizer --config config.yaml --out results/paper/data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from mpadam.data.stages import make_tokenizer

    data, tokenizer = study_sections(args)
    made = make_tokenizer(data, tokenizer, args.out / "tokenizer")
    log(f"{args.out}/tokenizer: {made.vocab_size} tokens ({made.fingerprint})")
    return 0
