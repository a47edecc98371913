"""`mpadam status`: runs and trials: waiting, running (step, loss, ETA), stopped, stale, failed, diverged, done,
unreadable.

    mpadam status smoke
"""

from mpadam.arguments import CONFIG, RESULTS, Namespace, argument, config_of

WATCH_SECONDS = 30.0


ARGUMENTS = (
    CONFIG,
    RESULTS,
    argument(
        "--watch",
        type=float,
        nargs="?",
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"again every so often (default: {WATCH_SECONDS:.0f}) until nothing is left to do, or Ctrl-C",
    ),
    argument("--json", action="store_true", help="all trainings as JSON; with --watch one line per reading"),
)


def run(args: Namespace) -> int:
    from mpadam.status.report import watch

    if args.watch is not None and not args.watch > 0:
        raise ValueError(f"--watch {args.watch}: give seconds above 0, e.g.  --watch 30")
    watch(config_of(args), args.results, seconds=args.watch, as_json=args.json)
    return 0
