"""Evaluates the final weights of a run folder again."""

from pathlib import Path

from mpadam.model.products import bf16_products
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import read_run_file
from mpadam.training.evaluation import Validation, evaluate
from mpadam.training.export import completed_run
from mpadam.training.machine import configure
from mpadam.training.regime import compute_model, load_model_state
from mpadam.training.session import open_data, open_validation


def evaluate_folder(path: Path, *, batch_size: int | None = None) -> Validation:
    """Validation of a finished run; at the run's own batch size exactly what its summary says.

    Raises ValueError if the folder has no final weights of this run, or the run diverged.
    """
    folder = RunFolder(path)
    run = read_run_file(folder.run_file)
    _, state = completed_run(folder, run)
    spec = run.spec
    configure(spec)
    validation = open_validation(open_data(run, folder), spec.data)
    model = compute_model(spec)
    load_model_state(model, state)
    batches = validation.batches(batch_size or spec.training.evaluation_batch_size)
    with bf16_products(spec.training.bf16_products):
        return evaluate(model, batches, fp8=spec.regime.fp8_eval, compiled=spec.training.compile_passes)
