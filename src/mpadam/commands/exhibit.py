"""`mpadam exhibit`: one table or figure of what lies in a folder of results."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "make a table or figure from the records in a folder of results"
EXAMPLE = "mpadam exhibit figures/figure3 --folder results/smoke/paper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="its files without suffix, e.g. tables/table2")
    parser.add_argument("--folder", type=Path, required=True, help="results/<study>, or its folder paper")


def run(args: argparse.Namespace) -> int:
    from mpadam.exhibits.registry import find
    from mpadam.exhibits.source import Source
    from mpadam.exhibits.write import write

    source = Source(args.folder)
    write([find(args.name)], source)
    print(f"{args.folder / args.name}: made")
    return 0
