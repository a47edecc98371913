"""The command line: `mpadam COMMAND ...`. Thin: each command is a module of `mpadam.commands`.

What the codes mean that it ends with is in `mpadam.exits`.
"""

import importlib
import inspect
import os
import pkgutil
import select
import signal
import sys
import textwrap

from mpadam import __version__, commands
from mpadam.arguments import Parser, add_command
from mpadam.exits import EXIT_BAD_INPUT
from mpadam.extras import MissingExtraError
from mpadam.inherited import make_own


def main(argv: list[str] | None = None) -> int:
    make_own()
    args = build_parser().parse_args(argv)
    try:
        code = int(args.run(args))
        print(end="", flush=True)
        return code
    except (ValueError, OSError, MissingExtraError) as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
            return 128 + signal.SIGPIPE
        print(f"mpadam {args.command}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _has_no_reader() -> bool:
    """Whether standard output is a pipe that nobody reads any more; another pipe may break, too."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return bool(poll.poll(0))


def build_parser() -> Parser:
    parser = Parser(
        prog="mpadam",
        description="Reproduces the study of M+Adam: low-precision training via additive-multiplicative optimization.",
    )
    parser.add_argument("--version", action="version", version=f"mpadam {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module_info in pkgutil.iter_modules(commands.__path__):
        module = importlib.import_module(f"{commands.__name__}.{module_info.name}")
        name = module_info.name.replace("_", "-")
        about, *_, example = inspect.cleandoc(module.__doc__ or "").split("\n\n")
        about = " ".join(about.partition(": ")[2].split()).removesuffix(".")
        add_command(subparsers, name, about, textwrap.dedent(example), module.ARGUMENTS).set_defaults(run=module.run)
    return parser
