"""What several commands share: arguments that name a study or a kind of a measurement, and how they end where a
result was refused."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mpadam.exits import EXIT_REFUSED

if TYPE_CHECKING:
    from mpadam.analysis.collect import Collected
    from mpadam.study.config import StudyConfig
    from mpadam.study.paths import StudyPaths


def exit_code(collected: Collected, command: str) -> int:
    """0, or EXIT_REFUSED where a result was refused; each is named on stderr."""
    for refusal in collected.refusals:
        print(f"mpadam {command}: refused: {refusal}", file=sys.stderr)
    return EXIT_REFUSED if collected.refusals else 0


def count(word: str) -> int:
    """A whole number from 1, as an argument."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word}: give a whole number from 1")
    return number


def add_study(parser: argparse.ArgumentParser, *, view: bool = True) -> None:
    """--config, --results and, if asked for, --view: a study and the part of its folder that a command writes."""
    parser.add_argument(
        "--config", type=Path, action="append", required=True, help="configuration, each over the ones before"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder that holds the study's folder (default: results)"
    )
    if view:
        parser.add_argument("--view", choices=["", "paper"], default="", help="write to this folder of the study's")


def add_records_only(parser: argparse.ArgumentParser) -> None:
    """--records-only: the tables and figures are left to `mpadam exhibit`, as the workflow does."""
    parser.add_argument("--records-only", action="store_true", help="write no tables and figures of it")


def study_of(args: argparse.Namespace) -> tuple[StudyConfig, StudyPaths]:
    """The study that `add_study`'s arguments name. Raises ConfigError if its configuration is wrong,
    ValueError if the archive of its runs is damaged."""
    from mpadam.study.archive import open_study
    from mpadam.study.load import load_study
    from mpadam.study.paths import StudyPaths

    config = load_study(args.config)
    return config, open_study(StudyPaths(config.study, args.results, args.view))


def add_kinds(
    parser: argparse.ArgumentParser, makes: Mapping[str, str], *, command: str, options: str, out: str
) -> None:
    """A subcommand each kind, with --options and --out.

    makes: kind -> what it makes. options: the module whose fields --options changes. out: what --out gets.
    """
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, makes_what in makes.items():
        subparser = kinds.add_parser(
            kind,
            help=makes_what,
            description=makes_what,
            epilog=f"example:\n  mpadam {command} {kind} --out results/smoke/paper",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.add_argument(
            "--options",
            default="{}",
            metavar="JSON",
            help=f"fields of {options} to change; what is left out keeps its default",
        )
        subparser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=out)
        add_records_only(subparser)
