"""`mpadam train`: train the runs of one or more folders, each from its `run.yaml`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "train the run that a folder's run.yaml describes, from its newest checkpoint if there is one"
EXAMPLE = "mpadam train --run-dir results/smoke/runs/200k/1x/bf16-bf16/m-plus-adam/seed0"
EXIT_REFUSED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-dir", type=Path, nargs="+", required=True, metavar="D", help="run folders, trained one after another"
    )
    parser.add_argument(
        "--replace", action="store_true", help="discard checkpoints of a run with another hash (else: exit code 3)"
    )
    parser.add_argument(
        "--stop-after-minutes", type=float, metavar="M", help="then finish the step, save, and end with exit code 75"
    )


def run(args: argparse.Namespace) -> int:
    if args.stop_after_minutes is not None and not args.stop_after_minutes >= 0:
        raise ValueError(f"--stop-after-minutes {args.stop_after_minutes}: give a number of minutes from 0")
    from mpadam.training.folder import RefusedError
    from mpadam.training.run import train_folder
    from mpadam.training.stopping import Stopper

    with Stopper(args.stop_after_minutes) as stop:
        for folder in args.run_dir:
            try:
                code = train_folder(folder, stop=stop, replace=args.replace)
            except RefusedError as error:
                print(f"mpadam train: {error}", file=sys.stderr)
                return EXIT_REFUSED
            if code != 0:
                return code
    return 0
