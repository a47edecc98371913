"""`mpadam site`: make index.html of a study and a page for each cell, to open from disk.

mpadam site --config config.yaml --config studies/smoke.yaml --results results
"""

from mpadam.arguments import STUDY, Namespace, study_of

ARGUMENTS = STUDY


def run(args: Namespace) -> int:
    from mpadam.analysis.collect import collect
    from mpadam.site.write import write_site

    config, paths = study_of(args)
    print(write_site(collect(config, paths)))
    return 0
