"""`mpadam train`: train the run that a folder's run.yaml describes, from its newest checkpoint if there is one.

mpadam train --run-dir results/smoke/runs/200k/1x/bf16-bf16/m-plus-adam/seed0
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mpadam.arguments import Namespace, argument
from mpadam.exits import EXIT_BAD_INPUT, EXIT_REFUSED, EXIT_STOPPED

if TYPE_CHECKING:
    from mpadam.training.ranks import Ranks
    from mpadam.training.stopping import Stopper

FULL_DISK = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room within your quota, or have it raised",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f unlimited)",
}


ARGUMENTS = (
    argument(
        "--run-dir", type=Path, nargs="+", required=True, metavar="D", help="run folders, trained one after another"
    ),
    argument(
        "--replace", action="store_true", help="discard checkpoints of a run with another hash (else: exit code 3)"
    ),
    argument(
        "--change-world-size",
        action="store_true",
        help="continue from a checkpoint of another number of processes (else: exit code 3)",
    ),
    argument(
        "--processes", type=int, default=1, metavar="N", help="train each run by N processes, one a GPU (default: 1)"
    ),
    argument(
        "--stop-after-minutes", type=float, metavar="M", help="then finish the step, save, and end with exit code 75"
    ),
)


def run(args: Namespace) -> int:
    check_minutes(args.stop_after_minutes)
    if args.processes < 1:
        raise ValueError(f"--processes {args.processes}: give at least 1")
    if args.processes > 1:
        from mpadam.training.launch import launch

        return launch(args.processes, _arguments(args))
    return in_ranks(args, lambda stop, ranks: _train_all(args, stop, ranks))


def check_minutes(minutes: float | None) -> None:
    if minutes is not None and not minutes >= 0:
        raise ValueError(f"--stop-after-minutes {minutes}: give a number of minutes from 0")


def in_ranks(args: Namespace, work: Callable[[Stopper, Ranks], int]) -> int:
    """Do `work`, which trains, on this process or those that torchrun has started; returns its exit code."""
    from mpadam.training.ranks import joined
    from mpadam.training.stopping import EndedAtOnceError, Stopper

    try:
        with Stopper(args.stop_after_minutes) as stop, joined() as ranks:
            return work(stop, ranks)
    except EndedAtOnceError as error:
        print(f"mpadam {args.command}: {error}", file=sys.stderr)
        return error.exit_code


def _train_all(args: Namespace, stop: Stopper, ranks: Ranks) -> int:
    """Train the folders one after another; returns the first exit code that is not 0.

    A run that fails or is refused does not keep the others from training; one that has to stop does.
    """
    first = 0
    for folder in args.run_dir:
        code = train_one(folder, stop, ranks, replace=args.replace, change_world_size=args.change_world_size)
        if code == EXIT_STOPPED:
            return code
        first = first or code
    return first


def _arguments(args: Namespace) -> list[str]:
    given = ["--run-dir", *map(str, args.run_dir)]
    given += ["--replace"] if args.replace else []
    given += ["--change-world-size"] if args.change_world_size else []
    minutes = args.stop_after_minutes
    return given if minutes is None else [*given, "--stop-after-minutes", str(minutes)]


def train_one(folder: Path, stop: Stopper, ranks: Ranks, *, replace: bool, change_world_size: bool = False) -> int:
    """Train one folder; returns the exit code. What went wrong is said by the leading rank alone."""
    from mpadam.training.folder import RefusedError
    from mpadam.training.run import train_folder

    try:
        return train_folder(folder, stop=stop, replace=replace, ranks=ranks, change_world_size=change_world_size)
    except RefusedError as error:
        code, message = EXIT_REFUSED, str(error)
    except Exception as error:
        remedy = FULL_DISK.get(error.errno or 0) if isinstance(error, OSError) else None
        if remedy or stop.signal:  # which has ended a compiler that was running, too
            code, message = (
                EXIT_STOPPED,
                f"{error}; {remedy or stop.signal}, then the same command continues from the last checkpoint",
            )
        elif isinstance(error, ValueError):
            code, message = EXIT_BAD_INPUT, str(error)
        else:
            raise
    if ranks.leads:
        print(f"mpadam train: {message}", file=sys.stderr)
    return code
