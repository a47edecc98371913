"""`mpadam probe`: show which updates of a training were rounded away, from the file of an UpdateProbe.

mpadam probe report updates.jsonl
"""

from pathlib import Path
from typing import Any

from mpadam.arguments import Namespace, add_command, argument

_OUT = argument(
    "--out", type=Path, help="figure, its suffix svg, png or pdf (default: FILE with the suffixes svg and png)"
)


def _report(parser: Any) -> None:
    subparsers = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    file = argument("file", type=Path, metavar="FILE", help="JSON lines that mpadam.UpdateProbe wrote")
    about = "draw the records, and say in one paragraph what would help"
    add_command(subparsers, "report", about, "mpadam probe report updates.jsonl", (file, _OUT))


ARGUMENTS = (_report,)


def run(args: Namespace) -> int:
    from mpadam.exhibits.kit.updates import draw_updates
    from mpadam.probes.reading import paragraph, read_records

    records = read_records(args.file)
    print(paragraph(records))
    files = [args.out] if args.out else [args.file.with_suffix(suffix) for suffix in (".svg", ".png")]
    for file in draw_updates(records, files):
        print(f"{file}: made")
    return 0
