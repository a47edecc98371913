"""A tiny training, from a study's configuration, through the trainer's own functions."""

from pathlib import Path
from typing import Any

import numpy as np

from mpadam.data import TokenData
from mpadam.optim.names import hyperparameters_of
from mpadam.study.auto import Auto
from mpadam.study.config import StudyConfig
from mpadam.study.diagnostics import Dataflow
from mpadam.study.grid import run_keys
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import RunFile, resolve, run_request
from mpadam.training.session import Session, open_session

VOCABULARY, LENGTH, ROWS = 64, 16, 6
HIDDEN, INTERMEDIATE = 32, 48  # no two sizes of a product are equal, so that its operands are known by their shapes
STEPS = 3


def tiny_session(options: Dataflow, regime: dict[str, Any], folder: Path) -> Session:
    """A session of a one-layer LLaMA on random tokens, at its first step; files go to `folder`.

    Raises ValueError for a regime that a study could not have.
    """
    data = _token_data(folder)
    return open_session(_run_file(options, regime, data.manifest), RunFolder(folder), data)


def _run_file(options: Dataflow, regime: dict[str, Any], manifest: dict[str, Any]) -> RunFile:
    config = StudyConfig.model_validate(_study(options, regime))
    request = run_request(config, run_keys(config)[0])
    auto = Auto(compile=False, fp8_backend=options.fp8_backend)
    return resolve(request, manifest=manifest, selected={}, data=".", auto=auto)


def _study(options: Dataflow, regime: dict[str, Any]) -> dict[str, Any]:
    schedule = {"kind": "constant", "warmup": 0.0}
    rates = {"lr": 1e-3, "lr_mult": 1e-2}
    values = {key: rates[key] for key in rates if key in hyperparameters_of(options.optimizer)}
    return {
        "study": "dataflow",
        "data": {"source": "builtin", "sequences": "pack", "sequence_length": LENGTH, "validation_tokens": LENGTH},
        "tokenizer": {"source": "bpe", "vocab_size": 258},
        "models": {
            "tiny": {
                "hidden_size": HIDDEN,
                "intermediate_size": INTERMEDIATE,
                "layers": 1,
                "heads": 2,
                "steps_1x": STEPS,
            }
        },
        "budgets": [1],
        "regimes": {"regime": regime},
        "optimizers": {"traced": {"optimizer": options.optimizer, "values": values}},
        "seeds": [0],
        "training": {
            "global_batch_size": ROWS * options.micro_batches,
            "micro_batch_size": ROWS,
            "schedule": schedule,
            "schedule_mult": schedule,
            "gradient_dtype": options.gradient_dtype,
            "state_dtype": options.state_dtype,
            "device": "cuda" if options.fp8_backend == "native" else "cpu",
            "threads": 1,
            "compile": False,
            "fp8_backend": options.fp8_backend,
            "attention": "eager",
        },
        "tuning": {"mode": "fixed"},
        "grids": [{"name": "all"}],
    }


def _token_data(folder: Path) -> TokenData:
    """Token files of random tokens: enough sequences for all steps, and two validation documents."""
    draw = np.random.default_rng(0)
    shards = []
    for split, documents in (("train", 64), ("validation", 2)):
        tokens = draw.integers(1, VOCABULARY, size=documents * 4 * LENGTH, dtype=np.uint16)
        ends = np.arange(1, documents + 1, dtype="<u8") * (4 * LENGTH)
        place = folder / "tokens" / split
        place.mkdir(parents=True)
        tokens.astype("<u2").tofile(place / "tokens.bin")
        ends.tofile(place / "ends.bin")
        files = {name: {"bytes": (place / name).stat().st_size} for name in ("tokens.bin", "ends.bin")}
        counts = {"documents": documents, "tokens": len(tokens)}
        shards.append({"name": split, "split": split, "dtype": "<u2", "counts": counts, "files": files})
    manifest = {
        "fingerprint": "random",
        "tokenizer_fingerprint": "none",
        "vocab_size": VOCABULARY,
        "pad_id": 0,
        "train_sequences": 10**6,
        "shards": shards,
    }
    return TokenData(folder, manifest)
