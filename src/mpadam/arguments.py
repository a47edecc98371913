"""Arguments of commands: how a command declares them, and those that several share.

ARGUMENTS = (argument("--out", type=Path), *STUDY)      as `ArgumentParser.add_argument` takes them
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mpadam.exits import EXIT_REFUSED

if TYPE_CHECKING:
    from mpadam.analysis.collect import Collected
    from mpadam.study.config import StudyConfig
    from mpadam.study.paths import StudyPaths

#: adds itself to a parser
Argument = Callable[[Any], Any]
argument: Callable[..., Argument] = partial(methodcaller, "add_argument")


class Parser(argparse.ArgumentParser):
    """A parser that names the choice or the option closest to a mistyped one; argparse itself does so for choices from
    Python 3.14 on. An unknown option is an error of the command that it was given to."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        options = [option for option in self._option_string_actions if option.startswith("--")]
        wrong, known = (choice[1], re.findall(r"[\w-]+", choice[2])) if choice else (self._mistyped(options), options)
        close = difflib.get_close_matches(wrong, known, n=1)
        super().error(f"{message}; did you mean {close[0]}?" if close else message)

    def _mistyped(self, options: Iterable[str]) -> str:
        """The first option given that none of these begins with; empty without one."""
        given = [word.partition("=")[0] for word in self._given if word.startswith("--")]
        return next((word for word in given if not any(option.startswith(word) for option in options)), "")


def one_of(*arguments: Argument, required: bool = False) -> Argument:
    """Arguments of which one at most is given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for each in arguments:
            each(group)

    return add


def add_command(
    subparsers: Any, name: str, about: str, example: str, arguments: Iterable[Argument]
) -> argparse.ArgumentParser:
    """The parser of a command, which ends its help with an example."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=about,
        description=about,
        epilog="example:\n" + textwrap.indent(example, "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for each in arguments:
        each(parser)
    return parser


CONFIG = one_of(
    argument(
        "study", metavar="STUDY", nargs="?", help="a study by its name: that of config.yaml, or of a file in studies/"
    ),
    argument("--config", type=Path, action="append", help="or its configuration, each over the ones before"),
    required=True,
)
RESULTS = argument(
    "--results", type=Path, default=Path("results"), help="folder that holds the study's folder (default: results)"
)
#: a study and the part of its folder that a command writes
STUDY = (
    CONFIG,
    RESULTS,
    argument("--view", choices=["", "paper"], default="", help="write to this folder of the study's"),
)
#: the tables and figures are left to `mpadam exhibit`, as the workflow does
RECORDS_ONLY = argument("--records-only", action="store_true", help="write no tables and figures of it")


def exit_code(collected: Collected, command: str) -> int:
    """0, or EXIT_REFUSED where a result was refused; each is named on stderr."""
    for refusal in collected.refusals:
        print(f"mpadam {command}: refused: {refusal}", file=sys.stderr)
    return EXIT_REFUSED if collected.refusals else 0


def config_of(args: Namespace) -> StudyConfig:
    """The study that the argument `CONFIG` names. Raises ConfigError if its configuration is wrong."""
    from mpadam.study.load import load_study

    return load_study(args.config or _files_of(args.study))


def _files_of(study: str) -> list[Path]:
    from mpadam.study.load import ConfigError, read_yaml

    base = Path("config.yaml")
    if not base.is_file():
        raise ConfigError(
            f"{study}: there is no config.yaml here; start in the repository, or give  --config A --config B"
        )
    files = {read_yaml(base).get("study"): [base]}
    files |= {overlay.stem: [base, overlay] for overlay in sorted(Path("studies").glob("*.yaml"))}
    if study not in files:
        known = ", ".join(map(str, files))
        raise ConfigError(f"{study}: not one of {known}; give the files of another study as  --config A --config B")
    return files[study]


def study_of(args: Namespace) -> tuple[StudyConfig, StudyPaths]:
    """The study that the arguments `STUDY` name. Raises ConfigError if its configuration is wrong,
    ValueError if the archive of its runs is damaged."""
    from mpadam.study.archive import open_study
    from mpadam.study.paths import StudyPaths

    config = config_of(args)
    return config, open_study(StudyPaths(config.study, args.results, args.view))


def kinds(makes: Mapping[str, str], *, command: str, options: str, out: str) -> Argument:
    """A subcommand each kind, with --options and --out.

    makes: kind -> what it makes. options: the module whose fields --options changes. out: what --out gets.
    """
    given = argument(
        "--options",
        default="{}",
        metavar="JSON",
        help=f"fields of {options} to change; what is left out keeps its default",
    )
    folder = argument("--out", type=Path, required=True, metavar="FOLDER", help=out)

    def add_all(parser: argparse.ArgumentParser) -> None:
        subparsers = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
        for kind, made in makes.items():
            example = f"mpadam {command} {kind} --out results/smoke/paper"
            add_command(subparsers, kind, made, example, (given, folder, RECORDS_ONLY))

    return add_all
