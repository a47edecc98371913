"""`mpadam aggregate`: tables and figures from the run folders of a study."""

from __future__ import annotations

import argparse

from mpadam.arguments import add_study, exit_code, study_of

HELP = "collect a study's runs and make its tables and figures"
EXAMPLE = "mpadam aggregate --config config.yaml --config studies/smoke.yaml --results results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)


def run(args: argparse.Namespace) -> int:
    """Write tables/ and figures/ of the study, print the tables; 3 if a summary was refused."""
    import sys

    from mpadam.analysis.collect import collect, write_runs
    from mpadam.analysis.pictures import write_picture
    from mpadam.analysis.pieces import pictures, tables
    from mpadam.analysis.render import to_text, write_table

    config, paths = study_of(args)
    collected = collect(config, paths)
    write_runs(collected.runs, paths.output / "tables" / "runs.csv")
    made = tables(collected)
    for table in made:
        write_table(table, paths.output / "tables")
    for picture in pictures(collected):
        write_picture(picture, paths.output / "figures")
    print("\n".join(to_text(table) for table in made), end="")
    if collected.unverified:
        print(f"{paths.manifest}: not there, so runs were not held against the data", file=sys.stderr)
    return exit_code(collected, "aggregate")
