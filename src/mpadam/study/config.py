"""The study as typed data: what `config.yaml` and its overlays may say.

Unknown keys are refused, numbers are numbers (`8e-5` too, which YAML 1.1 reads as a string), and every name that one
part of the file uses must be defined in another. The JSON schema in `workflow/schemas/` is generated from here.
This module imports neither torch nor transformers: Snakemake loads it each time it parses the workflow.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator
from pydantic_core import PydanticKnownError

from mpadam.diagnostics.options import Diagnostics
from mpadam.measure.options import Measure
from mpadam.numerics.formats import BY_MASTERS
from mpadam.optim.hyperparameters import check_hyperparameters
from mpadam.optim.names import OptimizerName, parse_optimizer_name
from mpadam.study.factors import check_searches, ends
from mpadam.study.section import Fraction, Name, PathText, PositiveInt, Section
from mpadam.study.text import DataConfig, TokenizerConfig


class ModelConfig(Section):
    """A LLaMA (paper.md section 4). Give `steps_1x` or `tokens_per_parameter`: what budget 1 means."""

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    micro_batch_size: PositiveInt | None = Field(None, description="for this model, in place of training's")
    steps_1x: PositiveInt | None = None
    tokens_per_parameter: Annotated[float, Field(gt=0)] | None = Field(
        None, description="positions a parameter at budget 1 (20 is Chinchilla's rule)"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be an even multiple of heads {self.heads}")
        if (self.steps_1x is None) == (self.tokens_per_parameter is None):
            raise ValueError("give exactly one of steps_1x and tokens_per_parameter, e.g.  steps_1x: 10000")
        return self

    def parameters(self, vocab_size: int) -> int:
        """Number of parameters: untied embedding and head, no biases."""
        h, f = self.hidden_size, self.intermediate_size
        return 2 * vocab_size * h + self.layers * (4 * h * h + 3 * h * f + 2 * h) + h

    def steps(self, budget: int, *, vocab_size: int, positions_per_step: int) -> int:
        """Updates at `budget`, a step being `positions_per_step` sequence positions."""
        if self.steps_1x is not None:
            return budget * self.steps_1x
        assert self.tokens_per_parameter is not None
        return math.ceil(budget * self.tokens_per_parameter * self.parameters(vocab_size) / positions_per_step)


class RegimeConfig(Section):
    """Precision: how weights are stored between steps (masters) and what multiplies them (compute)."""

    masters: str = Field(
        description="a storage format (mpadam.numerics.formats): fp32, bf16, fp8 (e5m2), fp8e4m3, nvfp4, or nvfp4s "
        "(nvfp4 with a sticky power of two as tensor scale)"
    )
    compute: Literal["bf16", "fp8"] = Field(description="inputs of the products of attention and MLP projections")
    block_size: PositiveInt = Field(256, description="weights that share a scale, along rows (fp8 masters)")
    block_rows: PositiveInt = Field(1, description="rows of a block; above 1 blocks are tiles (fp8 masters)")
    power_of_two_scale: bool = Field(True, description="false: FP16 scales (fp8 masters)")
    shadow: Literal["none", "refreshed", "persistent"] = Field(
        "none", description="optimizer-side copy of weights kept as codes; persistent is a hidden master"
    )
    shadow_dtype: Literal["bf16", "fp32"] = "bf16"
    carry_dtype: Literal["bf16", "fp32"] = Field(
        "bf16", description="of what Kahan carries; in codes, a bf16 carry holds less than most updates"
    )
    amax_history: PositiveInt = Field(16, description="steps whose largest magnitude decides a scale (fp8 compute)")
    margin: Annotated[int, Field(ge=0, le=8)] = Field(0, description="binades left free above it (fp8 compute)")
    fp8_eval: bool = Field(False, description="evaluate with FP8 products too, not in bf16 (fp8 compute)")

    @model_serializer(mode="wrap")
    def _without_absent_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Fields that came later enter neither run.yaml nor the hash while they say what runs did before."""
        before = {"carry_dtype": "bf16", "block_rows": 1}
        fields: dict[str, Any] = handler(self)
        return {key: value for key, value in fields.items() if key not in before or value != before[key]}

    @field_validator("masters")
    @classmethod
    def _known_format(cls, masters: str) -> str:
        if masters not in BY_MASTERS:
            raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, BY_MASTERS))})
        return masters

    @model_validator(mode="after")
    def _shadow_beside_codes(self) -> RegimeConfig:
        if self.shadow != "none" and not BY_MASTERS[self.masters].codes:
            raise ValueError(
                f"shadow {self.shadow!r} stands beside weights kept as codes, not beside {self.masters} masters; "
                "write  shadow: none"
            )
        return self


class OptimizerConfig(Section):
    """A named entry: which optimizer, its fixed values, and the values its search tries."""

    optimizer: str | None = Field(None, description="composed name, e.g. m-plus-adam-relative-sr; default: the entry's")
    values: dict[str, float | None] = Field(default_factory=dict, description="fixed hyper-parameters")
    search: dict[str, list[float]] = Field(
        default_factory=dict, description="hyper-parameter: values to try, in place of the fixed one (mode: search)"
    )
    warmup: Fraction | None = Field(None, description="share of the steps, in place of the schedules' (an ablation)")

    @field_validator("search", mode="before")
    @classmethod
    def _without_nulls(cls, search: object) -> object:
        """An overlay takes a value out of the search by `lr: null`; leaving it out would not, dictionaries merge."""
        return {k: v for k, v in search.items() if v is not None} if isinstance(search, dict) else search

    @model_validator(mode="after")
    def _search(self) -> OptimizerConfig:
        for key, candidates in self.search.items():
            if not candidates or len(set(candidates)) < len(candidates):
                raise ValueError(f"search.{key}: list each value once, at least one, e.g.  {key}: [1e-3, 3e-3]")
        return self


class ScheduleConfig(Section):
    """Rate over time of one branch: warm-up, then decay to `min_ratio` of the peak (paper.md section 2)."""

    kind: Literal["linear", "cosine", "logcosine", "constant"]
    warmup: Fraction = Field(0.2, description="share of the steps")
    min_ratio: Fraction = 0.0
    alpha: Annotated[float, Field(gt=0)] = Field(3.0, description="shape of logcosine")


class TrainingConfig(Section):
    """One run of the study, but for what the grid varies."""

    global_batch_size: PositiveInt = Field(512, description="sequences an update")
    micro_batch_size: PositiveInt = Field(256, description="sequences a forward pass on one device")
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    schedule: ScheduleConfig = ScheduleConfig(kind="linear")
    schedule_mult: ScheduleConfig | None = Field(
        ScheduleConfig(kind="logcosine"), description="of the multiplicative rate; null: follow `schedule`"
    )
    gradient_dtype: Literal["bf16", "fp32"] = "bf16"
    state_dtype: Literal["bf16", "fp32"] = Field("bf16", description="of moments, where the masters are not fp32")
    device: Literal["cpu", "cuda"] = "cuda"
    threads: PositiveInt = Field(8, description="CPU threads of a run: they change the order of sums")
    compile: Literal["auto", True, False] = Field("auto", description="torch.compile of the optimizer step")
    attention: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    liger: bool = Field(False, description="Liger kernels for norms, rotary embedding and MLP (CUDA)")
    fp8_backend: Literal["auto", "transformer_engine", "native", "emulated"] = Field(
        "auto", description="engine of FP8 products; auto needs the run's GPU in sight when run.yaml is written"
    )
    bf16_products: Literal["auto", "native", "float32"] = Field(
        "auto",
        description="products of bf16 matrices on a CPU: by its bf16 instructions, or through float32, rounded once; "
        "auto is native where the processor has them",
    )
    check_nonfinite_every: PositiveInt = Field(
        1, description="steps between looks at whether loss and gradients are finite"
    )
    log_every: PositiveInt = 10
    checkpoint_every: PositiveInt = 1000
    plot_every: PositiveInt = Field(1000, description="steps between pictures of the loss in the run folder")
    probe_every: PositiveInt | None = Field(
        None, description="steps between looks at which updates survive, at descent and at stale moments; null: never"
    )

    @model_validator(mode="after")
    def _products_of_a_cpu(self) -> TrainingConfig:
        if self.device != "cpu" and self.bf16_products != "auto":
            raise ValueError(
                f"bf16_products {self.bf16_products!r} is a choice for CPUs, and device is {self.device}; write  "
                "bf16_products: auto"
            )
        return self


class EvaluationConfig(Section):
    every: PositiveInt | None = Field(None, description="steps between validations; null: only at the end")
    batch_size: PositiveInt = Field(256, description="sequences a forward pass")


class TransferConfig(Section):
    """Who takes whose selected values, in place of a tuning of its own: `{what has none: what has one}`."""

    models: dict[str, str] = Field(default_factory=dict)
    regimes: dict[str, str] = Field(default_factory=dict)
    optimizers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_chains(self) -> TransferConfig:
        for axis in ("models", "regimes", "optimizers"):
            transfer = getattr(self, axis)
            for name, source in transfer.items():
                if source in transfer:
                    raise ValueError(f"{axis}: {name} takes the values of {source}, which itself takes another's")
        return self


class TuningConfig(Section):
    """How the rates of each (model, regime, optimizer) are chosen: the same number of trials for every optimizer."""

    mode: Literal["search", "fixed"]
    trials: PositiveInt = Field(1, description="trials of every optimizer")
    budget: PositiveInt = 1
    steps_fraction: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="length of a trial, share of a run")
    seed: Annotated[int, Field(ge=0)] = Field(1000, description="of all trials; not one of the study's seeds")
    extend: Annotated[int, Field(ge=0)] = Field(
        0, description="further trials of a tuning, at most, while its best trial lacks a neighbour to compare it with"
    )
    transfer: TransferConfig = TransferConfig()
    trials_per_job: Literal[1, "all"] = Field(
        1, description="all: the trials of a tuning share one job and its imports"
    )


class WandbConfig(Section):
    mode: Literal["disabled", "offline", "online"] = "disabled"
    project: str = "mpadam"
    entity: str | None = None


class ContainerConfig(Section):
    """What jobs run in. It changes no number of a run that the environment outside would not give too."""

    image: PathText | None = Field(None, description="an image file, or docker://...; null: no container")
    binds: list[PathText] = Field(
        default_factory=list, description="further folders that jobs need; data, tokenizer, results come by themselves"
    )


class ClusterConfig(Section):
    """What a site decides about jobs (profiles/slurm/cluster.yaml). null: sbatch is not told."""

    account: str | None = Field(None, description="-A")
    partition: str | None = Field(None, description="-p")
    gpu_partition: str | None = Field(None, description="-p of jobs with GPUs; null: partition")
    gpu_model: str | None = Field("h100", description="as in --gpus=h100:1; null: any GPU")
    constraint: str | None = Field(None, description="-C of jobs with GPUs")
    qos: str | None = Field(None, description="--qos")
    max_hours: Annotated[float, Field(gt=0)] | None = Field(
        None, description="longest job the partition takes; a longer training goes on in its next attempt"
    )
    sbatch: str | None = Field(None, description="further flags, e.g. --mail-type=FAIL")


class GridConfig(Section):
    """A block of the study: the product of its lists. A list left out means all that the study declares."""

    name: Name
    target: Literal["all", "all_paper"] = Field(
        "all", description="what runs it: all, or only all_paper (which runs all)"
    )
    models: list[str] | None = None
    budgets: list[int] | None = None
    regimes: list[str] | None = None
    optimizers: list[str] | None = None
    seeds: list[int] | None = None
    runs_per_job: PositiveInt = Field(
        1, description="runs that share one job and its imports, for short ones; those of earlier grids stay with them"
    )


class StudyConfig(Section):
    """The whole study."""

    study: Name
    data: DataConfig
    tokenizer: TokenizerConfig
    models: dict[Name, ModelConfig]
    budgets: list[PositiveInt]
    regimes: dict[Name, RegimeConfig]
    optimizers: dict[Name, OptimizerConfig]
    seeds: list[Annotated[int, Field(ge=0)]] = Field(description="of every cell; for verdicts at least six")
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tuning: TuningConfig
    wandb: WandbConfig = WandbConfig()
    diagnostics: Diagnostics = Diagnostics()
    container: ContainerConfig = ContainerConfig()
    cluster: ClusterConfig = ClusterConfig()
    measure: Measure = Measure()
    grids: Annotated[list[GridConfig], Field(min_length=1)]

    def micro_batch_size(self, model: str) -> int:
        """Sequences a forward pass of this model on one device."""
        return self.models[model].micro_batch_size or self.training.micro_batch_size

    def searched(self, entry: str) -> dict[str, list[float]]:
        """What the tuning of an entry tries: nothing where all rates are fixed."""
        return self.optimizers[entry].search if self.tuning.mode == "search" else {}

    def optimizer_name(self, entry: str) -> OptimizerName:
        """The composed optimizer of an entry: its `optimizer`, or the entry's own name before any '@'."""
        return parse_optimizer_name(self.optimizers[entry].optimizer or entry.partition("@")[0])

    @model_validator(mode="after")
    def _cross_references(self) -> StudyConfig:
        names = [grid.name for grid in self.grids]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"grids: {repeated[0]!r} names two grids; write e.g.  name: {repeated[0]}-2")
        for grid in self.grids:
            for axis in ("models", "budgets", "regimes", "optimizers", "seeds"):
                declared = list(getattr(self, axis))
                for value in getattr(grid, axis) or []:
                    if value not in declared:
                        raise ValueError(
                            f"grids: {grid.name}: {axis}: {value!r} is not declared; {axis} has "
                            f"{', '.join(map(str, declared))}"
                        )
        for axis in ("models", "regimes", "optimizers"):
            for pair in getattr(self.tuning.transfer, axis).items():
                for name in pair:
                    if name not in getattr(self, axis):
                        known = ", ".join(getattr(self, axis))
                        raise ValueError(f"tuning.transfer.{axis}: {name!r} is not declared; {axis} has {known}")
        if self.tuning.seed in self.seeds:
            raise ValueError(
                f"tuning.seed {self.tuning.seed} is also in seeds: selection and report must not share a seed; "
                f"write e.g.  seed: {max(self.seeds) + 1000}"
            )
        return self

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> StudyConfig:
        used = [model for grid in self.grids for model in (self.models if grid.models is None else grid.models)]
        for model in used:
            if self.training.global_batch_size % self.micro_batch_size(model):
                raise ValueError(
                    f"training.global_batch_size {self.training.global_batch_size} is not a multiple of "
                    f"micro_batch_size {self.micro_batch_size(model)} of model {model}"
                )
        return self

    @model_validator(mode="after")
    def _optimizer_entries(self) -> StudyConfig:
        used = {o for grid in self.grids for o in (self.optimizers if grid.optimizers is None else grid.optimizers)}
        for entry, optimizer in self.optimizers.items():
            try:
                name = self.optimizer_name(entry)
                check_hyperparameters(name, {**optimizer.values, **{k: v[0] for k, v in optimizer.search.items()}})
                for key, candidates in optimizer.search.items():
                    for value in candidates:
                        check_hyperparameters(name, {key: value})
            except ValueError as error:
                raise ValueError(f"optimizers.{entry}: {error}") from None
            missing = set(optimizer.search) - set(optimizer.values)
            if self.tuning.mode == "fixed" and missing and entry in used:
                key = min(missing)
                raise ValueError(
                    f"optimizers.{entry}.values: tuning.mode is fixed, so the searched {key} needs a fixed value; "
                    f"write e.g.  values: {{{key}: {optimizer.search[key][0]}}}"
                )
            source = self.tuning.transfer.optimizers.get(entry)
            for key, candidates in (self.searched(source) if source else {}).items():
                try:
                    check_hyperparameters(name, {key: candidates[0]})
                except ValueError as error:
                    raise ValueError(f"tuning.transfer.optimizers: {entry} from {source}: {error}") from None
            points = math.prod(len(v) for v in optimizer.search.values())
            is_tuned = entry in used and source is None
            if is_tuned and self.searched(entry) and points < self.tuning.trials:
                raise ValueError(
                    f"optimizers.{entry}: its search has {points} points, but every optimizer gets tuning.trials = "
                    f"{self.tuning.trials}: add values, or lower tuning.trials"
                )
        return self

    @model_validator(mode="after")
    def _equal_tuning(self) -> StudyConfig:
        if not self.tuning.extend:
            return self
        used = {o for grid in self.grids for o in (self.optimizers if grid.optimizers is None else grid.optimizers)}
        sources = {self.tuning.transfer.optimizers.get(entry, entry) for entry in used}
        searches = {entry: self.searched(entry) for entry in self.optimizers if entry in sources}
        searches = {entry: search for entry, search in searches.items() if search}
        check_searches(searches, self.tuning.trials)
        for entry, search in searches.items():
            for key, value in ends(search, self.tuning.extend):
                try:
                    check_hyperparameters(self.optimizer_name(entry), {key: value})
                except ValueError as error:
                    raise ValueError(f"optimizers.{entry}.search: tuning.extend may try {error}; lower it") from None
        return self
