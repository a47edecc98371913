"""Study folders as a finished workflow leaves them, made up: same names, same formats, numbers from a formula.

study = fake_study(tmp_path)                        every run completed
study.diverge(model="a", ...); study.remove(...)    then what went wrong
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mpadam.study.auto import Auto
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, run_keys, selection_key, trial_values, tuning_keys
from mpadam.study.load import parse_study
from mpadam.study.paths import StudyPaths
from mpadam.study.spec import resolve, run_request, tuning_identity, write_run_file
from mpadam.study.tuning import select, with_further

MANIFEST = {
    "fingerprint": "0123456789abcdef",
    "tokenizer_fingerprint": "fedcba9876543210",
    "vocab_size": 512,
    "train_sequences": 10**9,
    "train": {"documents": 1200, "tokens": 250_000, "text_bytes": 800_000},
    "validation": {"documents": 80, "tokens": 16_000, "text_bytes": 50_000},
    "validation_set": {"report": {"target_tokens": 2048}, "selection": {"target_tokens": 2048}, "target_tokens": 4096},
    "unigram_entropy": 5.4,
}


def study_content(**changes: Any) -> dict[str, Any]:
    """A configuration; `changes` replace its top-level keys."""
    shape = {"hidden_size": 32, "intermediate_size": 88, "layers": 2, "heads": 2, "steps_1x": 50}
    return {
        "study": "fake",
        "data": {"source": "builtin", "sequences": "pack", "sequence_length": 64, "validation_tokens": 4096},
        "tokenizer": {"source": "bpe", "vocab_size": 512},
        "models": {"tiny": shape, "small": {**shape, "layers": 4}},
        "budgets": [1, 2],
        "regimes": {
            "fp32-bf16": {"masters": "fp32", "compute": "bf16"},
            "bf16-bf16": {"masters": "bf16", "compute": "bf16"},
        },
        "optimizers": {
            "adamw": {"values": {"weight_decay": 0.1}, "search": {"lr": [1e-3, 3e-3, 1e-2]}},
            "m-plus-adam": {"search": {"lr": [1e-3, 3e-3, 1e-2], "lr_mult": [4e-3]}},
        },
        "seeds": [0, 1],
        "training": {"global_batch_size": 8, "micro_batch_size": 8, "device": "cpu", "threads": 1},
        "tuning": {"mode": "search", "trials": 3},
        "grids": [{"name": "all"}],
        **changes,
    }


@dataclass(frozen=True)
class FakeStudy:
    config: StudyConfig
    paths: StudyPaths

    @property
    def config_file(self) -> Path:
        return self.paths.results / "config.yaml"

    def key(self, **labels: Any) -> RunKey:
        first = run_keys(self.config)[0]
        return RunKey(**{**vars(first), **labels})

    def folder(self, **labels: Any) -> Path:
        return self.paths.run(self.key(**labels))

    def edit_summary(self, changes: dict[str, Any], **labels: Any) -> Path:
        """Change fields of one summary, NaN and infinity as Python writes them; returns the file."""
        path = self.folder(**labels) / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return path

    def diverge(self, **labels: Any) -> None:
        about = {"step": 17, "reason": "the loss is nan", "last_finite_loss": 9.9}
        ended = {"status": "diverged", "val_loss": None, "val_ppl": None, "val_tokens": None, "diverged": about}
        self.edit_summary(ended, **labels)

    def remove(self, **labels: Any) -> None:
        shutil.rmtree(self.folder(**labels))


def fake_study(results: Path, **changes: Any) -> FakeStudy:
    """A study in which every run completed, at `results`. Each kind is written once and copied from then on."""
    content = study_content(**changes)
    shutil.copytree(_original(json.dumps(content)), results, copy_function=shutil.copyfile)
    config = parse_study(content)
    return FakeStudy(config, StudyPaths(config.study, results))


_ORIGINALS = tempfile.TemporaryDirectory(prefix="mpadam-fake-studies-")


@cache
def _original(content: str) -> Path:
    config = parse_study(json.loads(content))
    results = Path(tempfile.mkdtemp(dir=_ORIGINALS.name))
    study = FakeStudy(config, StudyPaths(config.study, results))
    study.config_file.write_text(yaml.safe_dump(json.loads(content), sort_keys=False))
    study.paths.data.mkdir(parents=True)
    study.paths.manifest.write_text(json.dumps(MANIFEST))
    selected = {key: _write_tuning(study, key) for key in tuning_keys(config)}
    for run in run_keys(config):
        _write_run(study, run, selected[selection_key(config, run)])
    return results


def _write_tuning(study: FakeStudy, key: Any) -> dict[str, float]:
    if not tuning_identity(study.config, key):
        return {}

    def made(number: int, values: dict[str, float]) -> dict[str, Any]:
        loss = 5.0 + abs(values["lr"] - 3e-3)
        return {"values": values, "status": "completed", "val_loss": loss, "hash": f"{number:016x}"}

    listed = [made(k, values) for k, values in enumerate(trial_values(study.config, key.optimizer))]
    allowance = study.config.tuning.extend
    selection = select(with_further(listed, allowance, made), allowance)
    path = study.paths.selected(key)
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(selection, sort_keys=False))
    return selection["values"]


def perplexity(run: RunKey) -> float:
    """Falls with size and budget, lower for M+Adam, a little noise from the seed."""
    noise = random.Random(str(run)).gauss(0, 0.6)
    base = {"tiny": 60.0, "small": 45.0}.get(run.model, 50.0) * run.budget**-0.25
    return base * (0.95 if run.optimizer.startswith("m-plus") else 1.0) * (0.97 if "fp32" in run.regime else 1) + noise


def _write_run(study: FakeStudy, run: RunKey, selected: dict[str, float]) -> None:
    folder = study.paths.run(run)
    request = run_request(study.config, run)
    run_file = resolve(request, manifest=MANIFEST, selected=selected, data="../data", auto=Auto(compile=False))
    write_run_file(folder / "run.yaml", run_file)
    metrics = "".join(json.dumps({"step": step, "loss": 6.0 - step / 100}) + "\n" for step in range(10, 51, 10))
    (folder / "metrics.jsonl").write_text(metrics)
    loss = math.log(perplexity(run))
    summary = {
        "hash": run_file.spec.hash,
        "metrics_sha256": hashlib.sha256(metrics.encode()).hexdigest(),
        "labels": run_file.labels.model_dump(mode="json"),
        "status": "completed",
        "val_loss": loss,
        "val_ppl": math.exp(loss),
        "val_tokens": 2048,
        "steps": run_file.spec.training.steps,
        "positions": run_file.spec.training.steps * 512,
        "target_tokens": run_file.spec.training.steps * 504,
        "seconds": 12.5,
        "peak_memory_bytes": 5 * 10**8,
        "parameters": 60_000,
        "bytes_per_parameter": 8.0,
        "diverged": None,
        "hyperparameters": {**study.config.optimizers[run.optimizer].values, **selected},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "loss.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (folder / "train.log").write_text("done\n")
    (folder / "environment.json").write_text("{}")
