"""`mpadam probes`: make the table and figures of the probes that runs took of their updates.

mpadam probes --config config.yaml --config studies/pilot.yaml --results results --view paper
"""

from mpadam.arguments import STUDY, Namespace, study_of

ARGUMENTS = STUDY


def run(args: Namespace) -> int:
    from mpadam.analysis.collect import collect
    from mpadam.atomic import write_text
    from mpadam.exhibits.registry import needing
    from mpadam.exhibits.source import source_of
    from mpadam.exhibits.write import write
    from mpadam.study.paths import PROBES

    config, paths = study_of(args)
    source = source_of(collect(config, paths))
    table = paths.output / "tables" / f"{PROBES}.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    write_text(table, source.probes.to_csv())
    write(needing("probes", config), source)
    print(f"{table}: {len(source.probes.table):,} rows")
    return 0
