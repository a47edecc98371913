"""`mpadam probes`: a table and figures of what runs saw when they looked at their updates."""

from __future__ import annotations

import argparse

from mpadam.arguments import add_study, study_of

HELP = "make tables and figures of the looks that runs took at their updates"
EXAMPLE = "mpadam probes --config config.yaml --config studies/pilot.yaml --results results --view paper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)


def run(args: argparse.Namespace) -> int:
    """Write tables/probes.csv, and figures of survival (one a regime), descent and staleness."""
    from mpadam.analysis.collect import collect
    from mpadam.analysis.pictures import write_picture
    from mpadam.analysis.probes import read_looks
    from mpadam.analysis.probes_descent import descent_picture
    from mpadam.analysis.probes_staleness import staleness_picture
    from mpadam.analysis.probes_survival import survival_picture
    from mpadam.atomic import write_text
    from mpadam.study.probes import TABLE, regimes_of

    config, paths = study_of(args)
    looks = read_looks(collect(config, paths))
    tables, figures = paths.output / "tables", paths.output / "figures"
    tables.mkdir(parents=True, exist_ok=True)
    write_text(tables / f"{TABLE}.csv", looks.to_csv())
    for regime in regimes_of(config):
        write_picture(survival_picture(looks, regime), figures)
    for picture in (descent_picture(looks), staleness_picture(looks)):
        write_picture(picture, figures)
    print(f"{tables / TABLE}.csv: {len(looks.table):,} rows")
    return 0
