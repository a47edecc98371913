"""`mpadam exhibit`: make a table or figure from the records in a folder of results.

mpadam exhibit figures/figure3 --folder results/smoke/paper
"""

from pathlib import Path

from mpadam.arguments import Namespace, argument

ARGUMENTS = (
    argument("name", help="its files without suffix, e.g. tables/table2"),
    argument("--folder", type=Path, required=True, help="results/<study>, or its folder paper"),
)


def run(args: Namespace) -> int:
    from mpadam.exhibits.registry import find
    from mpadam.exhibits.source import Source
    from mpadam.exhibits.write import write

    write([find(args.name)], Source(args.folder))
    print(f"{args.folder / args.name}: made")
    return 0
