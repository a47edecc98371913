"""Tiny studies for tests of training: real token data of invented text, and run folders that train in a second."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import torch

from mpadam.data import TokenData
from mpadam.data.stages import prepare
from mpadam.study.config import RegimeConfig
from mpadam.study.run_folder import read_metrics
from mpadam.study.spec import (
    BranchSchedule,
    DataSpec,
    Labels,
    ModelSpec,
    OptimizerSpec,
    RunFile,
    RunSpec,
    TrainingSpec,
    numerics_version,
    write_run_file,
)
from mpadam.study.text import DataConfig, TokenizerConfig
from mpadam.training.run import train_folder
from mpadam.training.stopping import Stopper

LENGTH = 32
SUBJECTS = ("the weight", "a gradient", "the small model", "every token", "one update", "the large batch")
VERBS = ("moves", "rounds", "adds to", "multiplies", "forgets", "follows")
OBJECTS = ("the mantissa", "its exponent", "a neighbour", "the last step", "nothing at all", "the rate")


def documents(count: int, *, seed: int) -> list[str]:
    """Documents of 1 to 12 invented sentences: text with a grammar, whose lengths differ."""
    draw = random.Random(seed)
    return [
        " ".join(
            f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)}.".capitalize()
            for _ in range(draw.randint(1, 12))
        )
        for _ in range(count)
    ]


def make_data(
    folder: Path, *, sequences: str = "pack", documents_per_split: tuple[int, int] = (400, 60), vocab_size: int = 300
) -> TokenData:
    """Token data of invented text in C4's layout, with a tokenizer trained on it."""
    source = folder / "text"
    (source / "en").mkdir(parents=True)
    for number, (split, count, of) in enumerate(
        (("train", documents_per_split[0], "01024"), ("validation", documents_per_split[1], "00008"))
    ):
        lines = [json.dumps({"text": t, "url": "", "timestamp": ""}) for t in documents(count, seed=number)]
        with gzip.open(source / "en" / f"c4-{split}.00000-of-{of}.json.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    data = DataConfig(
        source="c4_folder", path=str(source), sequences=sequences, sequence_length=LENGTH, validation_tokens=2000
    )
    prepare(data, TokenizerConfig(source="bpe", vocab_size=vocab_size), folder / "data", log=lambda line: None)
    return TokenData.open(folder / "data")


def run_spec(data: TokenData, **changes: Any) -> RunSpec:
    """A run of 10 steps of a model with 40 thousand parameters; `changes` are fields of any of its parts."""
    steps = changes.get("steps", 10)
    schedule = BranchSchedule(
        kind="linear", total_steps=steps, warmup_steps=min(2, steps - 1), min_ratio=0.1, alpha=3.0
    )
    fields: dict[str, Any] = {
        "seed": 0,
        "hidden_size": 32,
        "intermediate_size": 72,
        "layers": 2,
        "heads": 2,
        "vocab_size": data.vocab_size,
        "attention": "eager",
        "liger": False,
        "sequences": "pack",
        "validation_tokens": 2000,
        "validation_half": "report",
        "masters": "bf16",
        "compute": "bf16",
        "name": "m-plus-adam",
        "values": {"lr": 3e-3, "lr_mult": 1e-2},
        "state_dtype": "bf16",
        "steps": steps,
        "global_batch_size": 8,
        "micro_batch_size": 8,
        "clip_norm": 1.0,
        "schedule": schedule,
        "schedule_mult": schedule.model_copy(update={"kind": "logcosine", "min_ratio": 0.0}),
        "gradient_dtype": "bf16",
        "log_every": 1,
        "evaluate_every": 5,
        "evaluation_batch_size": 16,
        "device": "cpu",
        "threads": 1,
        "compile": False,
        "fp8_backend": "emulated" if changes.get("compute") == "fp8" else None,
        "check_nonfinite_every": 1,
        **changes,
    }
    if "adamw" in fields["name"]:
        fields["values"] = {key: value for key, value in fields["values"].items() if key != "lr_mult"}

    def pick(*names: str) -> dict[str, Any]:
        return {name: fields.pop(name) for name in names}

    data_fields = {
        "fingerprint": data.manifest["fingerprint"],
        "tokenizer_fingerprint": data.manifest["tokenizer_fingerprint"],
        "sequence_length": LENGTH,
        "epochs": 100,
    }
    return RunSpec(
        numerics_version=numerics_version(fields["masters"], fields["name"]),
        seed=fields.pop("seed"),
        model=ModelSpec(
            sequence_length=LENGTH,
            **pick("hidden_size", "intermediate_size", "layers", "heads", "vocab_size", "attention", "liger"),
        ),
        data=DataSpec(**data_fields, **pick("sequences", "validation_tokens", "validation_half")),
        regime=RegimeConfig(**pick(*(name for name in RegimeConfig.model_fields if name in fields))),
        optimizer=OptimizerSpec(**pick("name", "values", "state_dtype")),
        training=TrainingSpec(**fields),
    )


def make_run(folder: Path, data: TokenData, *, checkpoint_every: int = 5, **changes: Any) -> Path:
    """A run folder with its run.yaml; returns the folder."""
    spec = run_spec(data, **changes)
    labels = Labels(
        study="test", model="tiny", budget=1, regime="bf16-bf16", optimizer=spec.optimizer.name, seed=spec.seed
    )
    wandb: dict[str, str | None] = {"mode": "disabled", "project": "mpadam", "entity": None}
    run = RunFile(
        labels=labels, data=str(data.folder.resolve()), checkpoint_every=checkpoint_every, wandb=wandb, spec=spec
    )
    write_run_file(folder / "run.yaml", run)
    return folder


class StopAfter(Stopper):
    """Says stop when it has been asked `updates` times, which training does once an update."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self._left = updates

    @property
    def reason(self) -> str | None:
        self._left -= 1
        return "enough" if self._left <= 0 else None


def train(folder: Path, *, stop: Stopper | None = None, replace: bool = False) -> int:
    """Train a folder in this process, and leave torch's determinism switch as it was; returns the exit code."""
    before = torch.are_deterministic_algorithms_enabled()
    try:
        return train_folder(folder, stop=stop or Stopper(), replace=replace)
    finally:
        torch.use_deterministic_algorithms(before)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, but for the throughput, which no two runs share."""
    lines = read_metrics(folder / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key != "tokens_per_s"} for line in lines]


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The final weights of a run."""
    return torch.load(folder / "checkpoints" / "final" / "state.pt", weights_only=True)["model"]


#: what differs between two runs of the same numbers: times, memory, and the file that holds times
NOT_NUMBERS = {
    *("seconds", "tokens_per_s", "model_flops_per_s", "attempts", "peak_memory_bytes", "labels"),
    *("metrics_sha256", "probes_sha256"),
}


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, metrics and summary of two runs are equal, bit for bit."""
    assert metrics_of(one) == metrics_of(other)
    summaries = [{k: v for k, v in summary_of(folder).items() if k not in NOT_NUMBERS} for folder in (one, other)]
    assert summaries[0] == summaries[1]
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
