"""From options to files: `produce(MatrixFitting(), Path("results/smoke"))`."""

from __future__ import annotations

from pathlib import Path

from mpadam.analysis.pictures import write_picture
from mpadam.analysis.render import write_table
from mpadam.diagnostics.matrix_fitting.choose import HOW, choose
from mpadam.diagnostics.matrix_fitting.figures import figure3, figure5, final_error_table
from mpadam.diagnostics.matrix_fitting.fit import METHODS, fit
from mpadam.diagnostics.matrix_fitting.records import write_records
from mpadam.diagnostics.matrix_fitting.tasks import problem
from mpadam.study.diagnostics import MatrixFitting


def produce(options: MatrixFitting, root: Path) -> None:
    """Write diagnostics/matrix-fitting/, figures 3 and 5, and the table of final errors under `root`."""
    matrices = problem(options)
    sweeps = [fit(method, matrices, options) for method in METHODS]
    choices = [choose(sweep, how, seeds=options.seeds) for sweep in sweeps for how in HOW]
    write_records(options, sweeps, choices, root / "diagnostics" / "matrix-fitting")
    write_table(final_error_table(options, choices), root / "tables")
    for picture in (figure3(options, choices), figure5(options, choices)):
        write_picture(picture, root / "figures")
