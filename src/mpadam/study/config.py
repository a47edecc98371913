"""The study as typed data: what `config.yaml` and its overlays may say.

Unknown keys are refused, numbers are numbers (`8e-5` too, which YAML 1.1 reads as a string), and every name that one
part of the file uses must be defined in another. The JSON schema in `workflow/schemas/` is generated from here.
This module imports neither torch nor transformers: Snakemake loads it each time it parses the workflow.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mpadam.optim.names import OptimizerName, check_hyperparameters, parse_optimizer_name
from mpadam.study.diagnostics import Diagnostics
from mpadam.study.measure import Measure
from mpadam.study.run_config import EvaluationConfig, ModelConfig, OptimizerConfig, RegimeConfig, TrainingConfig
from mpadam.study.section import Name, PathText, PositiveInt, Section
from mpadam.study.text import DataConfig, TokenizerConfig
from mpadam.study.tuning import check_searches, ends


class WandbConfig(Section):
    """Weights & Biases, which shows the metrics of running trainings and changes none of them (docs/training.md)."""

    mode: Literal["disabled", "offline", "online"] = Field(
        "disabled",
        description="`offline` writes into the run folder, for `wandb sync` later; `online` sends while it trains "
        "and needs network access and a key. Both need the package wandb.",
    )
    project: str = Field("mpadam", description="Project that the runs appear in.")
    entity: str | None = Field(
        None, description="User or team that owns the project; `null` means the default of the account."
    )


class ContainerConfig(Section):
    """The Apptainer image that jobs run in. It is not part of a run's identity (docs/cluster.md)."""

    image: PathText | None = Field(
        None,
        description="Path of an image file, or an address such as `docker://...`; `null` runs jobs in the "
        "environment that runs Snakemake.",
    )
    binds: list[PathText] = Field(
        default_factory=list,
        description="Further folders outside the repository that jobs need. Those of data, tokenizer and results "
        "are bound without being listed.",
    )


class ClusterConfig(Section):
    """What a site decides about Slurm jobs (profiles/slurm/cluster.yaml). `null` passes no such option to sbatch."""

    account: str | None = Field(None, description="Account that jobs are charged to: `-A` of sbatch.")
    partition: str | None = Field(None, description="Partition of jobs: `-p` of sbatch.")
    gpu_partition: str | None = Field(
        None, description="Partition of jobs that use GPUs; `null` means `partition` for them too."
    )
    gpu_model: str | None = Field(
        "h100",
        description="Name of the GPU as Slurm knows it, as in `--gpus=h100:1`; time limits are estimated for it. "
        "`null` asks for any GPU, with the time limits of an A100.",
    )
    constraint: str | None = Field(None, description="Node features that jobs with GPUs require: `-C` of sbatch.")
    qos: str | None = Field(None, description="Quality of service: `--qos` of sbatch.")
    max_hours: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Longest time limit that the partition accepts, in hours. A training that needs longer stops in "
        "time and continues in its next attempt. `null` sets no limit.",
    )
    sbatch: str | None = Field(None, description="Further options of sbatch, for example `--mail-type=FAIL`.")


#: of a grid; a run is a value of each
AXES = ("models", "budgets", "regimes", "optimizers", "seeds")


class TransferConfig(Section):
    """Which models, regimes and optimizers have no tuning of their own, and whose selected values they use.

    Each is a mapping from the one without a tuning to the one with it. Where one side of a comparison was tuned and the
    other was not, a claim gets no verdict (docs/concepts/claims.md).
    """

    models: dict[str, str] = Field(
        default_factory=dict, description="Models, for example `{1b: 350m}`: 1b uses the values selected for 350m."
    )
    regimes: dict[str, str] = Field(default_factory=dict, description="Regimes, for example `{fp32-fp8: fp32-bf16}`.")
    optimizers: dict[str, str] = Field(
        default_factory=dict,
        description="Optimizer entries, for example `{adamw-sr: adamw}`. Values that the entry itself fixes take "
        "precedence.",
    )

    @model_validator(mode="after")
    def _no_chains(self) -> Self:
        for axis in ("models", "regimes", "optimizers"):
            transfer = getattr(self, axis)
            for name, source in transfer.items():
                if source in transfer:
                    raise ValueError(f"{axis}: {name} takes the values of {source}, which itself takes another's")
        return self


class TuningConfig(Section):
    """How the searched hyper-parameters of each (model, regime, optimizer) are chosen (docs/concepts/claims.md).

    Every optimizer has the same number of trials. The trial with the lowest loss on the selection half of the
    validation set gives the values of the runs, which are reported on the other half.
    """

    mode: Literal["search", "fixed"] = Field(
        description="`search` tries the values under each optimizer's `search`; `fixed` trains no trials and uses "
        "`values` alone."
    )
    trials: PositiveInt = Field(
        1,
        description="Trials of every optimizer that has a search. Where the product of an optimizer's lists has "
        "more points than this, a fixed random sample of them is tried; fewer points are refused.",
    )
    budget: PositiveInt = Field(1, description="Budget of the trials, as a multiple of each model's budget 1.")
    steps_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="Length of a trial, as a share (above 0, at most 1) of a run at `budget`. Shorter trials cost "
        "less, and tend to prefer rates that are too large for a whole run.",
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        1000, description="Seed of all trials. It must not be one of the study's `seeds`."
    )
    extend: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Largest number of further trials per tuning. They are made one at a time while the best trial "
        "has an untried neighbour, for instance because it is at an end of its list. Every search must then have "
        "exactly `trials` points and the same factor between neighbouring values.",
    )
    transfer: TransferConfig = Field(
        TransferConfig(), description="What uses the selected values of another model, regime or optimizer."
    )
    trials_per_job: Literal[1, "all"] = Field(
        1,
        description="Trials that one job trains. `all` puts those of a tuning into one job, which saves the start "
        "of a process for each; use it where trials are short.",
    )


class GridConfig(Section):
    """A block of runs: every combination of its lists. The training jobs of a study are the union of its blocks.

    A list that is left out means all that the study declares.
    """

    name: Name = Field(description="Name of the block, unique within the study.")
    target: Literal["all", "all_paper"] = Field(
        "all",
        description="Target of Snakemake that trains the block: `all`, or only `all_paper`, which trains the others "
        "too.",
    )
    models: list[str] | None = Field(None, description="Names of models; `null` means all models.")
    budgets: list[int] | None = Field(None, description="Budgets; `null` means all budgets.")
    regimes: list[str] | None = Field(None, description="Names of regimes; `null` means all regimes.")
    optimizers: list[str] | None = Field(None, description="Names of optimizer entries; `null` means all of them.")
    seeds: list[int] | None = Field(None, description="Seeds; `null` means all seeds.")
    runs_per_job: PositiveInt = Field(
        1,
        description="Runs that one job trains, one after another; larger numbers save the start of a process for "
        "each of many short runs. A run that is also in an earlier block belongs to that block's jobs.",
    )


class StudyConfig(Section):
    """The keys at the top level. An overlay merges into mappings and replaces lists."""

    study: Name = Field(
        description="Name of the study, and of its folder in `results/`. Lower-case letters, digits and `-`, at "
        "most 64 characters; an overlay gives another name so that both studies are kept."
    )
    data: DataConfig = Field(description="The text, and how sequences are made of it.")
    tokenizer: TokenizerConfig = Field(description="The tokenizer.")
    models: dict[Name, ModelConfig] = Field(description="Models by name.")
    budgets: list[PositiveInt] = Field(
        description="Lengths of training, as multiples of each model's budget 1 (`steps_1x` or `tokens_per_parameter`)."
    )
    regimes: dict[Name, RegimeConfig] = Field(description="Precision regimes by name.")
    optimizers: dict[Name, OptimizerConfig] = Field(description="Optimizer entries by name.")
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        description="Seeds of the runs. A seed decides initial weights, order of the data and stochastic rounding. "
        "A claim needs at least three for a verdict, and six for an exact p below 0.05."
    )
    training: TrainingConfig = Field(TrainingConfig(), description="Settings of every training.")
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="Validation of the runs.")
    tuning: TuningConfig = Field(description="How learning rates are chosen.")
    wandb: WandbConfig = Field(WandbConfig(), description="Weights & Biases; off by default.")
    diagnostics: Diagnostics = Field(
        Diagnostics(), description="Settings of the diagnostics, the measurements that need no trained model."
    )
    container: ContainerConfig = Field(ContainerConfig(), description="The container that jobs run in.")
    cluster: ClusterConfig = Field(ClusterConfig(), description="Account, partition and the like of a Slurm cluster.")
    measure: Measure = Field(Measure(), description="Settings of the measurements of time and memory.")
    report: Literal["all", "updates"] = Field(
        "all",
        description="What is made of the runs. `updates` makes Figure 1 and what probes show of updates, judges the "
        "claims about these, and leaves out everything that compares perplexities. It is for runs that are not tuned, "
        "or too short for a perplexity to mean anything, and it needs `training.probe_every`.",
    )
    grids: Annotated[list[GridConfig], Field(min_length=1)] = Field(
        description="Blocks of runs; their union, without duplicates, is the set of training jobs."
    )

    def micro_batch_size(self, model: str) -> int:
        """Sequences a forward pass of this model on one device."""
        return self.models[model].micro_batch_size or self.training.micro_batch_size

    def values_of(self, grid: GridConfig, axis: str) -> list[Any]:
        """The values of one of `AXES` in a grid: a list that is left out means all that the study declares."""
        chosen = getattr(grid, axis)
        return list(getattr(self, axis) if chosen is None else chosen)

    def searched(self, entry: str) -> dict[str, list[float]]:
        """What the tuning of an entry tries: nothing where all rates are fixed."""
        return self.optimizers[entry].search if self.tuning.mode == "search" else {}

    def optimizer_name(self, entry: str) -> OptimizerName:
        """The composed optimizer of an entry: its `optimizer`, or the entry's own name before any '@'."""
        return parse_optimizer_name(self.optimizers[entry].optimizer or entry.partition("@")[0])

    @model_validator(mode="after")
    def _cross_references(self) -> Self:
        names = [grid.name for grid in self.grids]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"grids: {repeated[0]!r} names two grids; write e.g.  name: {repeated[0]}-2")
        for grid in self.grids:
            for axis in AXES:
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
    def _report_of_probes(self) -> Self:
        if self.report == "updates" and self.training.probe_every is None:
            raise ValueError(
                "report 'updates' is made of probes, and training.probe_every is null; write e.g.  probe_every: 20, or "
                "report: all"
            )
        return self

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        for model in self._used("models"):
            if self.training.global_batch_size % self.micro_batch_size(model):
                raise ValueError(
                    f"training.global_batch_size {self.training.global_batch_size} is not a multiple of "
                    f"micro_batch_size {self.micro_batch_size(model)} of model {model}"
                )
        return self

    @model_validator(mode="after")
    def _optimizer_entries(self) -> Self:
        used = self._used("optimizers")
        for entry, optimizer in self.optimizers.items():
            searched = [(key, value) for key, candidates in optimizer.search.items() for value in candidates]
            first = {key: candidates[0] for key, candidates in optimizer.search.items()}
            tried: list[Mapping[str, float | None]] = [
                {**optimizer.values, **first},
                *({key: v} for key, v in searched),
            ]
            for values in tried:
                self._check_values(entry, values, f"optimizers.{entry}: ")
            missing = set(optimizer.search) - set(optimizer.values)
            if self.tuning.mode == "fixed" and missing and entry in used:
                key = min(missing)
                raise ValueError(
                    f"optimizers.{entry}.values: tuning.mode is fixed, so the searched {key} needs a fixed value; "
                    f"write e.g.  values: {{{key}: {optimizer.search[key][0]}}}"
                )
            source = self.tuning.transfer.optimizers.get(entry)
            for key, candidates in (self.searched(source) if source else {}).items():
                self._check_values(entry, {key: candidates[0]}, f"tuning.transfer.optimizers: {entry} from {source}: ")
            points = math.prod(len(v) for v in optimizer.search.values())
            is_tuned = entry in used and source is None
            if is_tuned and self.searched(entry) and points < self.tuning.trials:
                raise ValueError(
                    f"optimizers.{entry}: its search has {points} points, but every optimizer gets tuning.trials = "
                    f"{self.tuning.trials}: add values, or lower tuning.trials"
                )
        return self

    @model_validator(mode="after")
    def _equal_tuning(self) -> Self:
        if not self.tuning.extend:
            return self
        sources = {self.tuning.transfer.optimizers.get(entry, entry) for entry in self._used("optimizers")}
        searches = {entry: found for entry in self.optimizers if entry in sources and (found := self.searched(entry))}
        check_searches(searches, self.tuning.trials)
        for entry, search in searches.items():
            for key, value in ends(search, self.tuning.extend):
                may_try = f"optimizers.{entry}.search: tuning.extend may try "
                self._check_values(entry, {key: value}, may_try, "; lower it")
        return self

    def _used(self, axis: str) -> list[Any]:
        """Values of an axis that a grid has, in the order of the grids."""
        return list(dict.fromkeys(value for grid in self.grids for value in self.values_of(grid, axis)))

    def _check_values(self, entry: str, values: Mapping[str, float | None], before: str, after: str = "") -> None:
        """Raise ValueError, with these words around it, if hyper-parameters are not such as the entry may have."""
        try:
            check_hyperparameters(self.optimizer_name(entry), values)
        except ValueError as error:
            raise ValueError(f"{before}{error}{after}") from None
