"""Exports a trained run as a folder that Hugging Face's `from_pretrained` loads, offline.

    mpadam export RUN OUT

    OUT/model.safetensors  config.json  generation_config.json      the weights that the run was judged on
    OUT/tokenizer.json ...                                          the tokenizer of its data
    OUT/run.json                                                    its summary: where every number comes from

The weights are the compute copies, in the dtype of the run's forward pass: what masters in FP8 or NVFP4 decode to.
Evaluated by the run's own attention and kernels they give its validation loss to the last bit, by others to 1e-4 in
bf16; a run that was evaluated in FP8 (`fp8_eval`) gives its bf16 loss.
"""

import shutil
from pathlib import Path
from typing import Any

from mpadam.atomic import remove, temporary_name, write_json
from mpadam.data.tokenizer import TextTokenizer, copy_tokenizer, load_tokenizer
from mpadam.model.build import COMPUTE_DTYPES, build_model
from mpadam.model.products import bf16_products
from mpadam.study.run_folder import RunFolder, data_of, kept_result
from mpadam.study.spec import RunFile, RunSpec, read_run_file
from mpadam.training import checkpoint as checkpoints
from mpadam.training.evaluation import Validation, evaluate
from mpadam.training.machine import configure
from mpadam.training.session import compute_model, load_model_state, open_data, open_validation


def export_run(path: Path, out: Path) -> None:
    """Write the run of folder `path` to the new folder `out`, which is whole or absent.

    Raises ValueError if `out` exists, the run is not completed, or its tokenizer is gone or another one.
    """
    folder = RunFolder(path)
    run = read_run_file(folder.run_file)
    if out.exists():
        raise ValueError(f"{out} exists: give the name of a new folder")
    summary, state = completed_run(folder, run)
    tokenizer_folder = data_of(folder, run) / "tokenizer"
    tokenizer = _tokenizer_of(run, tokenizer_folder)
    temporary = temporary_name(out)
    temporary.mkdir(parents=True)
    try:
        _save_model(run.spec, state["model"], tokenizer, temporary)
        copy_tokenizer(tokenizer_folder, temporary)
        write_json(temporary / "run.json", summary)
        temporary.rename(out)
    except BaseException:
        remove(temporary)
        raise


def completed_run(folder: RunFolder, run: RunFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Summary and final state of a run.

    Raises ValueError if it has not ended, or diverged: its weights then have no validation loss to show for.
    """
    summary = kept_result(folder, run.spec.hash)
    try:
        state = checkpoints.read(folder.checkpoints / checkpoints.FINAL, run_hash=run.spec.hash).state()
    except checkpoints.UnusableError as error:
        summary, why = None, f" ({error})"
    else:
        why = ""
    if summary is None:
        raise ValueError(
            f"{folder.path}: no final weights of run {run.spec.hash}{why}; train it first: mpadam train --run-dir "
            f"{folder.path}"
        )
    if summary["status"] == "diverged":
        what = summary["diverged"]
        raise ValueError(
            f"{folder.path}: the run diverged at step {what['step']} ({what['reason']}); its weights are no result"
        )
    return summary, state


def _tokenizer_of(run: RunFile, folder: Path) -> TextTokenizer:
    tokenizer, expected = load_tokenizer(folder), run.spec.data.tokenizer_fingerprint
    if tokenizer.fingerprint != expected:
        raise ValueError(
            f"{folder}: this tokenizer's fingerprint is {tokenizer.fingerprint}, the run was trained with {expected}: "
            "make the data of that study again (mpadam data)"
        )
    return tokenizer


def _save_model(spec: RunSpec, weights: dict[str, Any], tokenizer: TextTokenizer, out: Path) -> None:
    model = build_model(spec.model, seed=spec.seed, dtype=COMPUTE_DTYPES[spec.regime.compute])
    model.load_state_dict(weights)
    for config in (model.config, model.generation_config):
        assert config is not None
        config.eos_token_id, config.pad_token_id = tokenizer.eos_id, tokenizer.pad_id
    model.config.dtype = model.dtype
    model.save_pretrained(out)
    for path in out.iterdir():
        shutil.copymode(out / "config.json", path)  # safetensors lets only the owner read what it writes


# --- evaluation -------------------------------------------------------------------------------------------------------


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
