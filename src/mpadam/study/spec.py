"""The identity of a run: `run.yaml` holds every field that changes its numbers, and their hash.

A request is what the configuration alone says of a run; Snakemake passes it as a parameter of the `spec` rule, so a
change to it, and only that, asks for the run again. `resolve` adds what earlier rules found out (the selected rates,
the fingerprints of data and tokenizer) and what "auto" means (`mpadam.study.auto`), and makes the `RunSpec`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from mpadam.atomic import write_text
from mpadam.canonical import sha256_of
from mpadam.numerics.formats import card_of
from mpadam.optim.names import BY_CHANCE, parse_optimizer_name
from mpadam.study.auto import Auto, Bf16Products, resolve_backend
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey, selection_key, trial_values
from mpadam.study.load import ConfigError, read_yaml, to_yaml
from mpadam.study.run_config import LlamaSection, ModelConfig, RegimeConfig
from mpadam.study.section import GrownSection, Section, first_fault


def numerics_version(masters: str, optimizer: str) -> int:
    """Version of the numbers of a run with masters such as "nvfp4" and an optimizer such as "adamw-sr".

    It is raised for the runs whose numbers a change of the program changes, and so repeats those and no others;
    tests/golden tells when that is.

        1    the first
        2    stochastic rounding of FP8 and NVFP4 weights: scales are kept and move by powers of two
    """
    return 2 if card_of(masters).codes and parse_optimizer_name(optimizer).write_back in BY_CHANCE else 1


Half = Literal["selection", "report"]
_DATA = {"sequences", "sequence_length", "epochs", "validation_tokens"}  # of `data`: not where the text comes from


class Labels(Section):
    """Names by which people and tables know the run. They change no number and are not hashed."""

    study: str
    model: str
    budget: int
    regime: str
    optimizer: str
    seed: int
    trial: int | None = None

    @property
    def title(self) -> str:
        """`60m 1x bf16-bf16 adamw seed 0`."""
        return f"{self.model} {self.budget}x {self.regime} {self.optimizer} seed {self.seed}"


class ModelSpec(LlamaSection):
    """Shape of the model, as in the configuration's `models`, with the vocabulary of the data and the kernels used."""

    vocab_size: int
    sequence_length: int
    attention: Literal["sdpa", "flash_attention_2", "eager"]
    liger: bool = False


class DataSpec(Section):
    """The data of a run: `fingerprint` covers text, split and tokens, `tokenizer_fingerprint` the tokenizer.

    `validation_half` is the half of the validation set that the run is evaluated on.
    """

    fingerprint: str
    tokenizer_fingerprint: str
    sequences: Literal["pack", "truncate_pad"]
    sequence_length: int
    epochs: int
    validation_tokens: int
    validation_half: Half


class OptimizerSpec(Section):
    """`name`: composed name; `values`: hyper-parameters given by the study, the rest are the optimizer's defaults."""

    name: str
    values: dict[str, float | None]
    state_dtype: Literal["bf16", "fp32"]


class BranchSchedule(Section):
    """Schedule of one rate, in updates: `mpadam.optim.schedules.factor` takes these fields."""

    kind: Literal["linear", "cosine", "logcosine", "constant"]
    total_steps: int
    warmup_steps: int
    min_ratio: float
    alpha: float


class TrainingSpec(GrownSection):
    """The configuration's `training` and `evaluation`, in updates instead of shares and with every `auto` resolved."""

    added = frozenset({"bf16_products", "compile_passes"})

    steps: int
    global_batch_size: int
    micro_batch_size: int
    clip_norm: float | None
    schedule: BranchSchedule
    schedule_mult: BranchSchedule
    gradient_dtype: Literal["bf16", "fp32"]
    log_every: int
    evaluate_every: int | None
    evaluation_batch_size: int
    device: Literal["cpu", "cuda"]
    threads: int
    compile: bool
    fp8_backend: Literal["transformer_engine", "native", "emulated"] | None
    check_nonfinite_every: int
    bf16_products: Bf16Products | None = Field(
        None,
        description="How a CPU multiplies bf16 matrices, as in the configuration; null means torch's own way, as on "
        "CUDA and in runs from before this field.",
    )
    compile_passes: bool = Field(
        False, description="forward and backward pass with compiled pieces; false: eager, as before this field"
    )


class RunSpec(Section):
    """All that changes the numbers of a run, and nothing else."""

    numerics_version: int
    seed: int
    model: ModelSpec
    data: DataSpec
    regime: RegimeConfig
    optimizer: OptimizerSpec
    training: TrainingSpec

    @property
    def hash(self) -> str:
        """16 hexadecimal digits over the canonical JSON of all fields."""
        return sha256_of(self.model_dump(mode="json"))[:16]


class RunFile(GrownSection):
    """The content of `run.yaml`."""

    added = frozenset({"probe_layers"})

    labels: Labels
    data: str = Field(description="Folder with the token files, relative to the run's folder.")
    checkpoint_every: Annotated[int, Field(gt=0)]
    plot_every: Annotated[int, Field(gt=0)] = 1000
    probe_every: Annotated[int, Field(gt=0)] | None = None
    probe_layers: bool = False
    wandb: dict[str, str | None]
    spec: RunSpec


# --- from the configuration ------------------------------------------------------------------------------------------


def run_request(config: StudyConfig, key: RunKey) -> dict[str, Any]:
    """What the configuration says of one run of the study."""
    request = _request(config, Labels(study=config.study, **vars(key)), half="report", fraction=1.0)
    return {**request, "tuning": tuning_identity(config, selection_key(config, key))}


def trial_request(config: StudyConfig, key: TuningKey, trial: int) -> dict[str, Any]:
    """What the configuration says of one tuning trial: a short run on the tuning seed, judged on the other half."""
    labels = Labels(study=config.study, budget=config.tuning.budget, seed=config.tuning.seed, trial=trial, **vars(key))
    request = _request(config, labels, half="selection", fraction=config.tuning.steps_fraction)
    request["values"].update(trial_values(config, key.optimizer)[trial])
    return request


def tuning_identity(config: StudyConfig, key: TuningKey) -> dict[str, Any]:
    """What decides the selected values of a tuning; empty when nothing is searched."""
    if not config.searched(key.optimizer):
        return {}
    fields = {"budget", "steps_fraction", "seed"} | ({"extend"} if config.tuning.extend else set())
    tuning = config.tuning.model_dump(mode="json", include=fields)
    return {**tuning, "model": key.model, "trials": trial_values(config, key.optimizer)}


def _request(config: StudyConfig, labels: Labels, *, half: Half, fraction: float) -> dict[str, Any]:
    searched, optimizer = config.searched(labels.optimizer), str(config.optimizer_name(labels.optimizer))
    version = numerics_version(config.regimes[labels.regime].masters, optimizer)
    return {
        "labels": labels.model_dump(mode="json"),
        "model": config.models[labels.model].model_dump(mode="json"),
        "regime": config.regimes[labels.regime].model_dump(mode="json"),
        "optimizer": optimizer,
        "values": {k: v for k, v in config.optimizers[labels.optimizer].values.items() if k not in searched},
        "half": half,
        "fraction": fraction,
        "data": config.data.model_dump(mode="json", include=_DATA),
        "training": _training(config, labels.optimizer),
        **({"numerics_version": version} if version > 1 else {}),  # the first is said by saying nothing
        "evaluation": config.evaluation.model_dump(mode="json"),
        "wandb": config.wandb.model_dump(mode="json"),
    }


def _training(config: StudyConfig, entry: str) -> dict[str, Any]:
    """The section `training`; an optimizer entry may have a warm-up of its own, for both rates.

    `bf16_products: auto` and `probe_layers: false` are left out, as they were before these fields existed: finished
    runs are not asked for again.
    """
    training, warmup = config.training.model_dump(mode="json"), config.optimizers[entry].warmup
    for key, before in (("bf16_products", "auto"), ("probe_layers", False)):
        if training[key] == before:
            del training[key]
    for schedule in ("schedule", "schedule_mult"):
        if warmup is not None and training[schedule] is not None:
            training[schedule]["warmup"] = warmup
    return training


# --- with what earlier rules found out -------------------------------------------------------------------------------


def resolve(
    request: dict[str, Any], *, manifest: dict[str, Any], selected: dict[str, float], data: str, auto: Auto
) -> RunFile:
    """The run file of a request.

    manifest: of the data (`fingerprint`, `tokenizer_fingerprint`, `vocab_size`, `train_sequences`).
    selected: hyper-parameters found by tuning; they complete `values`.
    data: folder with the token files, relative to the run's folder.
    auto: what "auto" means where the run is to compute.
    Raises ConfigError when the data cannot supply the run.
    """
    training, data_config, model = request["training"], request["data"], ModelConfig(**request["model"])
    batch, length, vocab_size = training["global_batch_size"], data_config["sequence_length"], manifest["vocab_size"]
    full = model.steps(request["labels"]["budget"], vocab_size=vocab_size, positions_per_step=batch * length)
    steps = max(1, round(full * request["fraction"]))
    _check_supply(steps * batch, manifest["train_sequences"], data_config["epochs"], request["labels"])
    regime = RegimeConfig(**request["regime"])
    spec = RunSpec(
        numerics_version=numerics_version(regime.masters, request["optimizer"]),
        seed=request["labels"]["seed"],
        model=ModelSpec(
            **vars(model.size),
            vocab_size=vocab_size,
            sequence_length=length,
            attention=training["attention"],
            liger=training["liger"],
        ),
        data=DataSpec(
            fingerprint=manifest["fingerprint"],
            tokenizer_fingerprint=manifest["tokenizer_fingerprint"],
            validation_half=request["half"],
            **data_config,
        ),
        regime=regime,
        optimizer=OptimizerSpec(
            name=request["optimizer"],
            values=dict(sorted({**selected, **request["values"]}.items())),
            state_dtype="fp32" if regime.masters == "fp32" else training["state_dtype"],
        ),
        training=_training_spec(request, steps=steps, regime=regime, model=model, auto=auto),
    )
    return RunFile(
        labels=Labels(**request["labels"]),
        data=data,
        checkpoint_every=training["checkpoint_every"],
        plot_every=training["plot_every"],
        probe_every=training["probe_every"],
        probe_layers=training.get("probe_layers", False),
        wandb=request["wandb"],
        spec=spec,
    )


def _training_spec(
    request: dict[str, Any], *, steps: int, regime: RegimeConfig, model: ModelConfig, auto: Auto
) -> TrainingSpec:
    training = request["training"]
    as_they_are = {"global_batch_size", "clip_norm", "gradient_dtype", "log_every", "device", "threads"}
    return TrainingSpec(
        steps=steps,
        micro_batch_size=model.micro_batch_size or training["micro_batch_size"],
        schedule=_branch(training["schedule"], steps),
        schedule_mult=_branch(training["schedule_mult"] or training["schedule"], steps),
        evaluate_every=request["evaluation"]["every"],
        evaluation_batch_size=request["evaluation"]["batch_size"],
        compile=auto.compile if training["compile"] == "auto" else training["compile"],
        fp8_backend=_fp8_backend(training, regime, auto),
        bf16_products=training.get("bf16_products", auto.bf16_products),
        compile_passes=auto.compile_passes,
        check_nonfinite_every=training["check_nonfinite_every"],
        **{field: training[field] for field in as_they_are},
    )


def _fp8_backend(training: dict[str, Any], regime: RegimeConfig, auto: Auto) -> str | None:
    if regime.compute != "fp8":
        return None
    if training["fp8_backend"] == "auto":
        return auto.fp8_backend
    return resolve_backend(
        training["fp8_backend"], device=training["device"], capability=None, transformer_engine=False
    )


def _branch(section: dict[str, Any], steps: int) -> BranchSchedule:
    share, same = section["warmup"], {key: section[key] for key in ("kind", "min_ratio", "alpha")}
    return BranchSchedule(total_steps=steps, warmup_steps=round(share * steps), **same)


def _check_supply(needed: int, available: int, epochs: int, labels: dict[str, Any]) -> None:
    if needed > available * epochs:
        raise ConfigError(
            f"model {labels['model']} at budget {labels['budget']} needs {needed:,} training sequences, but the data "
            f"has {available:,} and data.epochs {epochs} allows {available * epochs:,}; lower the budget, add data, or "
            f"write  epochs: {-(-needed // available)}"
        )


# --- on disk ---------------------------------------------------------------------------------------------------------


def write_run_file(path: Path, run: RunFile) -> None:
    """Write `run.yaml` atomically, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_yaml({"hash": run.spec.hash, **run.model_dump(mode="json")}))


def read_run_file(path: Path) -> RunFile:
    """Read `run.yaml` and check its hash.

    Raises ConfigError if the file is missing, malformed, or was edited without its hash.
    """
    content = read_yaml(path)
    recorded = content.pop("hash", None)
    try:
        run = RunFile.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_fault(error)}") from None
    if recorded != run.spec.hash:
        raise ConfigError(
            f"{path}: hash says {recorded}, its fields say {run.spec.hash}: it was edited or comes from another "
            "version; make it again with the workflow's spec rule (mpadam spec)"
        )
    return run


def differing_fields(old: RunSpec, new: RunSpec) -> list[str]:
    """Dotted names of the fields in which two specifications differ, with both values."""
    before, after = (dict(_flatten(spec.model_dump(mode="json"))) for spec in (old, new))
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [item for key, inner in value.items() for item in _flatten(inner, f"{prefix}.{key}" if prefix else key)]
