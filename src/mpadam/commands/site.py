"""`mpadam site`: the pages of a study."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "make index.html of a study and a page for each run, to open from disk"
EXAMPLE = "mpadam site --config config.yaml --config studies/smoke.yaml --results results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, action="append", required=True, help="configuration, each over the ones before"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder that holds the study's folder")
    parser.add_argument("--view", choices=["", "paper"], default="", help="write to this folder of the study's")


def run(args: argparse.Namespace) -> int:
    from mpadam.analysis.collect import collect
    from mpadam.site.write import write_site
    from mpadam.study.load import load_study
    from mpadam.study.paths import StudyPaths

    config = load_study(args.config)
    paths = StudyPaths(config.study, args.results, args.view)
    print(write_site(collect(config, paths)))
    return 0
