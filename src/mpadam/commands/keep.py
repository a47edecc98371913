"""`mpadam keep`: keep what is needed to check a study's results, its runs and trials in one archive; no weights, no
tokens.

    mpadam keep results/long results/example/long
"""

from pathlib import Path

from mpadam.arguments import Namespace, argument

ARGUMENTS = (
    argument("study", type=Path, metavar="STUDY", help="folder of a study, results/<study>"),
    argument("out", type=Path, metavar="OUT", help="new folder; mpadam site makes its pages"),
)


def run(args: Namespace) -> int:
    from mpadam.study.archive import keep

    kept = keep(args.study, args.out)
    print(f"{args.out}: {len(kept):,} files, {sum(path.stat().st_size for path in kept) / 1e6:.1f} MB")
    return 0
