"""From options to files: `produce(MatrixFitting(), Path("results/smoke"))`."""

from pathlib import Path

from mpadam.diagnostics.matrix_fitting.choose import HOW, choose
from mpadam.diagnostics.matrix_fitting.fit import METHODS, fit
from mpadam.diagnostics.matrix_fitting.records import write_records
from mpadam.diagnostics.matrix_fitting.tasks import problem
from mpadam.study.diagnostics import MatrixFitting


def produce(options: MatrixFitting, root: Path) -> None:
    """Write diagnostics/matrix-fitting/ under `root`: results.json, curves.csv, sweeps.csv."""
    matrices = problem(options)
    sweeps = [fit(method, matrices, options) for method in METHODS]
    choices = [choose(sweep, how, seeds=options.seeds) for sweep in sweeps for how in HOW]
    write_records(options, sweeps, choices, root / "diagnostics" / "matrix-fitting")
