r"""`mpadam extend`: train further trials of a tuning while its best one has no neighbour to compare it with.

    mpadam extend --trials results/smoke/tuning/200k/bf16-bf16/adamw/trial{0,1} \
      --searched '{"trials": [{"lr": 0.001}, {"lr": 0.003}], "extend": 2}' --out extension.yaml
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpadam.arguments import Namespace, argument
from mpadam.commands.train import check_minutes, in_ranks, train_one

if TYPE_CHECKING:
    from mpadam.training.ranks import Ranks
    from mpadam.training.stopping import Stopper


class _NotDoneError(Exception):
    """A further trial did not end; the exit code is its argument."""


ARGUMENTS = (
    argument("--trials", required=True, type=Path, nargs="+", help="folder of each finished trial, in order"),
    argument(
        "--searched",
        required=True,
        help="JSON: `trials` lists the searched values of each trial, `extend` says how many further ones there may be",
    ),
    argument("--out", required=True, type=Path, help="record of the further trials, to write at the end"),
    argument(
        "--stop-after-minutes", type=float, metavar="M", help="then finish the step, save, and end with exit code 75"
    ),
)


def run(args: Namespace) -> int:
    check_minutes(args.stop_after_minutes)
    return in_ranks(args, partial(_extend, args))


def _extend(args: Namespace, stop: Stopper, ranks: Ranks) -> int:
    from mpadam.atomic import write_text
    from mpadam.commands.tune import read_searched
    from mpadam.study.load import to_yaml
    from mpadam.study.tuning import with_further
    from mpadam.training.trials import further_folder, read_trial, write_further

    first = args.trials[0]

    def made(number: int, values: dict[str, float]) -> dict[str, Any]:
        folder = further_folder(first, number)
        ranks.together(lambda: write_further(first, number, values))
        if code := train_one(folder, stop, ranks, replace=True):
            raise _NotDoneError(code)
        return ranks.together(lambda: read_trial(folder, values))

    trials, allowance = ranks.together(lambda: read_searched(args.searched, args.trials))
    try:
        found = with_further(trials, allowance, made)
    except _NotDoneError as error:
        return int(error.args[0])
    further = found[len(trials) :]
    record = {"allowed": allowance, "first": len(trials), "trials": further}
    ranks.together(lambda: write_text(args.out, to_yaml(record)))
    if ranks.leads:
        print(f"{args.out}: {len(further)} of at most {allowance} further trials")
    return 0
