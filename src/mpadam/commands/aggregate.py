"""`mpadam aggregate`: collect a study's runs and make its tables and figures.

mpadam aggregate --config config.yaml --config studies/smoke.yaml --results results
"""

from mpadam.arguments import RECORDS_ONLY, STUDY, Namespace, exit_code, study_of

ARGUMENTS = (*STUDY, RECORDS_ONLY)


def run(args: Namespace) -> int:
    """3 if a summary was refused."""
    import sys

    from mpadam.analysis.collect import collect, write_runs

    config, paths = study_of(args)
    collected = collect(config, paths)
    write_runs(collected.runs, paths.output / "tables" / "runs.csv")
    if not args.records_only:
        from mpadam.exhibits.registry import needing
        from mpadam.exhibits.source import source_of
        from mpadam.exhibits.write import write_and_print

        write_and_print(needing("runs", config, paths.view), source_of(collected))
    if collected.unverified:
        print(f"{paths.manifest}: does not exist, so runs were not checked against the data", file=sys.stderr)
    return exit_code(collected, "aggregate")
