"""`mpadam tune`: choose the rates of one tuning from its finished trials."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "choose the rates of one (model, regime, optimizer) from its finished trials"
EXAMPLE = (
    "mpadam tune --trials results/smoke/tuning/200k/bf16-bf16/adamw/trial*/summary.json \\\n"
    '    --searched \'{"trials": [{"lr": 0.001}, {"lr": 0.003}]}\' --out selected.yaml'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", required=True, type=Path, nargs="+", help="summary.json of each trial, in order")
    parser.add_argument("--searched", required=True, help="JSON whose `trials` lists the searched values of each trial")
    parser.add_argument("--out", required=True, type=Path, help="selected.yaml to write")


def run(args: argparse.Namespace) -> int:
    import json

    from mpadam.atomic import write_text
    from mpadam.stored import stored
    from mpadam.study.load import to_yaml
    from mpadam.study.tuning import select
    from mpadam.training.folder import RunFolder, altered

    searched = json.loads(args.searched)["trials"]
    if len(searched) != len(args.trials):
        raise ValueError(f"--trials names {len(args.trials)} summaries, --searched lists {len(searched)} trials")
    trials = []
    for values, path in zip(searched, args.trials, strict=True):
        with stored(path, remedy="delete it and run the workflow again"):
            summary = json.loads(path.read_text(encoding="utf-8"))
            found = summary["spec"]["optimizer"]["values"]
            trial = {"values": values, **{key: summary[key] for key in ("status", "val_loss", "hash")}}
            fault = altered(RunFolder(path.parent), summary)
        if fault:
            raise ValueError(f"{path}: edited: {fault}; delete it and run the workflow again")
        wrong = [key for key, value in values.items() if found.get(key) != value]
        if wrong:
            raise ValueError(f"{path}: {wrong[0]} is {found.get(wrong[0])}, not {values[wrong[0]]}: stale")
        trials.append(trial)
    selected = select(trials)
    write_text(args.out, to_yaml(selected))
    print(f"{args.out}: trial {selected['best']} of {len(trials)}: {selected['values']}")
    return 0
