"""`mpadam spec`: write the run.yaml of one run or trial."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write run.yaml: every field that changes a run's numbers, and their hash"
EXAMPLE = (
    'mpadam spec --request "$REQUEST" --manifest results/smoke/data/manifest.json \\\n'
    "    --selected results/smoke/tuning/200k/bf16-bf16/adamw/selected.yaml --out RUN_DIR/run.yaml\n"
    "  (REQUEST is the JSON that the workflow makes of the configuration: snakemake -n -p shows it)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--request", required=True, help="what the configuration says of the run, as JSON")
    parser.add_argument("--manifest", required=True, type=Path, help="manifest.json of the study's data")
    parser.add_argument("--selected", type=Path, nargs="*", default=[], help="selected.yaml of its tuning, if any")
    parser.add_argument("--out", required=True, type=Path, help="the run.yaml to write")


def run(args: argparse.Namespace) -> int:
    import json
    import os

    from mpadam.study.load import read_yaml
    from mpadam.study.spec import auto_here, resolve, write_run_file

    selected: dict[str, float] = {}
    for path in args.selected:
        selected.update(read_yaml(path)["values"])
    request = json.loads(args.request)
    run_file = resolve(
        request,
        manifest=json.loads(args.manifest.read_text()),
        selected=selected,
        data=os.path.relpath(args.manifest.parent, args.out.parent),
        auto=auto_here(request),
    )
    write_run_file(args.out, run_file)
    print(f"{args.out}: {run_file.spec.hash}")
    return 0
