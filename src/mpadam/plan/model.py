"""The cost model of one study: work, devices, seconds and memory of each of its trainings.

model = CostModel(load_study([Path("config.yaml")]))
model.seconds(Training(RunKey("60m", 1, "bf16-bf16", "adamw", 0)))
runtime_minutes(config, key, attempt=1), gpus(config, "60m")      what the workflow asks Slurm for
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpadam.plan.assumptions import (
    GPUS,
    GROWTH_PER_ATTEMPT,
    HEAD_ROOM,
    RUNTIME_ROUND_MINUTES,
    SLOWEST_GPU,
    START_UP_SECONDS,
    VOCABULARY,
    Gpu,
)
from mpadam.plan.cost import Shape, Work, cpu_step_seconds, gpu_bytes, gpu_step_seconds, work
from mpadam.plan.jobs import Cell, Observed, Training, trials
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey


@dataclass(frozen=True)
class CostModel:
    """vocab_size: None means the configured one, or the paper's where a tokenizer folder has not been looked at.

    gpu: a key of `assumptions.GPUS`; None: what `cluster.gpu_model` says.
    observed: speed of finished runs by model and regime; it replaces the assumptions about them.
    """

    config: StudyConfig
    vocab_size: int | None = None
    gpu: str | None = None
    observed: Mapping[Cell, Observed] = field(default_factory=dict)

    @property
    def on_cpu(self) -> bool:
        return self.config.training.device == "cpu"

    @property
    def hardware(self) -> Gpu:
        return GPUS[self.gpu or known_gpu(self.config) or SLOWEST_GPU]

    def shape(self, model: str) -> Shape:
        vocab_size = self.vocab_size or self.config.tokenizer.vocab_size or VOCABULARY
        return Shape(self.config.models[model], vocab_size, self.config.data.sequence_length)

    def work(self, training: Training) -> Work:
        key, config = training.key, self.config
        budget, fraction = (
            (key.budget, 1.0) if isinstance(key, RunKey) else (config.tuning.budget, config.tuning.steps_fraction)
        )
        return work(
            self.shape(key.model),
            config.training,
            config.evaluation,
            budget=budget,
            fraction=fraction,
            validation_tokens=config.data.validation_tokens,
        )

    def devices(self, model: str) -> int:
        """GPUs of a run, or its CPU threads: what its seconds are multiplied with for its cost."""
        if self.on_cpu:
            return self.config.training.threads
        wanted = self.gpus_wanted(model)
        micro_batches = self.config.training.global_batch_size // self.config.micro_batch_size(model)
        return max(n for n in range(1, wanted + 1) if micro_batches % n == 0)  # they share them evenly

    def gpus_wanted(self, model: str) -> int:
        """GPUs that a model's size wants, however the batch is cut."""
        return self.shape(model).size_class.gpus

    def assumed_step_seconds(self, key: RunKey | TuningKey) -> float:
        """Seconds of one update by the stated assumptions alone."""
        shape, training, regime = self.shape(key.model), self.config.training, self.config.regimes[key.regime]
        if self.on_cpu:
            return cpu_step_seconds(shape, regime, training)
        name = self.config.optimizer_name(key.optimizer)
        return gpu_step_seconds(shape, regime, name, training, gpu=self.hardware, gpus=self.devices(key.model))

    def seconds(self, training: Training) -> float:
        """Seconds of a run or trial from its first step to its last, validations included."""
        key, does = training.key, self.work(training)
        observed = self.observed.get((key.model, key.regime))
        if observed is not None:
            return does.positions * observed.seconds_per_position / self.devices(key.model)
        return does.equivalent_positions / does.positions * does.steps * self.assumed_step_seconds(key)

    def hours(self, training: Training) -> float:
        """GPU-hours, or core-hours on a CPU: devices times seconds, the start of its job included."""
        return self.devices(training.key.model) * (self.seconds(training) + self._start_up(training)) / 3600

    def memory_bytes(self, key: RunKey | TuningKey) -> float:
        """Peak memory of one GPU."""
        name, regime = self.config.optimizer_name(key.optimizer), self.config.regimes[key.regime]
        return gpu_bytes(self.shape(key.model), regime, name, self.config.training, gpus=self.devices(key.model))

    def _start_up(self, training: Training) -> float:
        """A trial that shares its job with the others of its tuning starts up once for all of them."""
        shared = training.trial is not None and self.config.tuning.trials_per_job == "all"
        together = len(_trials_of(self.config, training.key)) if shared else 1
        return START_UP_SECONDS[self.config.training.device] / together


def known_gpu(config: StudyConfig) -> str | None:
    """The key of `GPUS` that the site's name for a GPU holds (`h100`, `nvidia_a100-sxm4-80gb`), if any."""
    named = (config.cluster.gpu_model or "").lower()
    return next((name for name in GPUS if name in named), None)


def gpus(config: StudyConfig, model: str) -> int:
    """GPUs of one run of a model; 0 where the study trains on the CPU.

    As many as its size wants (`SIZE_CLASSES`), or fewer: they share the micro-batches of an update evenly.
    """
    return 0 if config.training.device == "cpu" else CostModel(config).devices(model)


def runtime_minutes(
    config: StudyConfig,
    key: RunKey | TuningKey,
    attempt: int = 1,
    *,
    observed: Mapping[Cell, Observed] | None = None,
) -> int:
    """Time limit of a job in minutes: its estimate with head-room, half as much again with each further attempt.

    key: of a run, or of a tuning: then of one trial, or of all its trials where they share a job.
    observed: speed of finished runs, from `mpadam.plan.jobs.observe`.
    """
    model = CostModel(config, observed=observed or {})
    job = [Training(key)] if isinstance(key, RunKey) else _trials_of(config, key) or [Training(key, 0)]
    if isinstance(key, TuningKey) and config.tuning.trials_per_job == 1:
        job = job[:1]
    seconds = START_UP_SECONDS[config.training.device] + sum(map(model.seconds, job))
    minutes = HEAD_ROOM * (1 + GROWTH_PER_ATTEMPT * (attempt - 1)) * seconds / 60
    return RUNTIME_ROUND_MINUTES * math.ceil(minutes / RUNTIME_ROUND_MINUTES)


def _trials_of(config: StudyConfig, key: RunKey | TuningKey) -> list[Training]:
    assert isinstance(key, TuningKey)
    return trials(config, [key])
