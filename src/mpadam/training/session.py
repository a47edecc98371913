"""Everything a training works with, built from `run.yaml`: the same file gives the same session, bit for bit; and the
precision regime of a run: what its weights are stored in, and the model that computes in its precision.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from mpadam.data import TokenData, TrainBatches, ValidationSet
from mpadam.model.build import COMPUTE_DTYPES, build_model, initial_value
from mpadam.model.compiled import compile_layers
from mpadam.model.fp8.control import compile_casts, fp8_state_dict, load_fp8_state_dict
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.model.fp8.scaling import Fp8Recipe
from mpadam.model.layers import apply_liger, fill_up_mlps
from mpadam.numerics.base import Format
from mpadam.numerics.formats import card_of
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.groups import Row, listing
from mpadam.optim.names import hyperparameters_of
from mpadam.optim.registry import build_optimizer
from mpadam.optim.schedules import factor
from mpadam.study.run_config import RegimeConfig
from mpadam.study.run_folder import RunFolder, data_of
from mpadam.study.spec import BranchSchedule, DataSpec, RunFile, RunSpec
from mpadam.study.streams import stream_seed
from mpadam.training import checkpoint as checkpoints
from mpadam.training.checkpoint import Checkpoint, OtherVersionError, Progress
from mpadam.training.feed import Feed
from mpadam.training.folder import RefusedError
from mpadam.training.gradients import accumulate_in_float32
from mpadam.training.metrics import holds
from mpadam.training.ranks import ALONE, Ranks

# --- regime -----------------------------------------------------------------------------------------------------------


def weight_format(regime: RegimeConfig) -> str | Format:
    """What the projections are stored in: a name, or a format as the regime's own fields want it."""
    card = card_of(regime.masters)
    return card.build(**{key: getattr(regime, key) for key in card.options}) if card.options else card.name


def compute_model(spec: RunSpec, ranks: Ranks = ALONE) -> LlamaForCausalLM:
    """The model of a run at its initial weights, its projections in FP8 where the regime computes in it,
    its elementwise work Liger's or compiled where `run.yaml` says so.

    ranks: those that train it; they share FP8's scales.
    """
    model = build_model(
        spec.model, seed=spec.seed, dtype=COMPUTE_DTYPES[spec.regime.compute], device=spec.training.device
    )
    if spec.regime.compute == "fp8":
        assert spec.training.fp8_backend is not None
        convert_to_fp8(
            model,
            backend=spec.training.fp8_backend,
            recipe=Fp8Recipe(amax_history=spec.regime.amax_history, margin=spec.regime.margin),
            group=ranks.group,
            products=spec.training.bf16_products,
        )
    elif spec.training.device != "cpu":
        fill_up_mlps(model)
    if spec.training.compile_passes:
        compile_casts(model)
    if spec.model.liger:
        return apply_liger(model)
    return compile_layers(model) if spec.training.compile_passes else model


def model_state(model: LlamaForCausalLM) -> dict[str, Any]:
    """What a checkpoint keeps of the model: its parameters, and the scaling state of FP8 compute."""
    return {"model": model.state_dict(), "fp8": fp8_state_dict(model)}


def load_model_state(model: LlamaForCausalLM, state: dict[str, Any]) -> None:
    """Restore what `model_state` kept, bit for bit."""
    model.load_state_dict(state["model"])
    load_fp8_state_dict(model, state["fp8"])


def weights_csv(model: LlamaForCausalLM, optimizer: LowPrecisionOptimizer) -> str:
    """How each parameter is stored, a line each, as `mpadam.optim.groups.Row` names its columns."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, Row._fields, lineterminator="\n")
    writer.writeheader()
    for row in listing(model, optimizer.param_groups):
        shape, tied = "x".join(map(str, row.shape)), " ".join(row.tied)
        writer.writerow(row._replace(weight_format=str(row.weight_format))._asdict() | {"shape": shape, "tied": tied})
    return lines.getvalue()


# --- session ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """A run that is ready to take its next step; `progress` says which one that is."""

    run: RunFile
    folder: RunFolder
    model: LlamaForCausalLM
    optimizer: LowPrecisionOptimizer
    batches: TrainBatches
    validation: ValidationSet
    rates: tuple[ScheduledRate, ...]
    progress: Progress
    ranks: Ranks = ALONE

    @property
    def spec(self) -> RunSpec:
        return self.run.spec

    @cached_property
    def feed(self) -> Feed:
        training = self.spec.training
        return Feed(self.batches, self.ranks.rows(training.global_batch_size), training.device)


@dataclass(frozen=True)
class ScheduledRate:
    """A rate of the optimizer (`lr`, `lr_mult`), its peak, and the schedule of its branch."""

    key: str
    peak: float
    schedule: BranchSchedule

    def at(self, step: int) -> float:
        """The rate of update `step` = 1, 2, ..."""
        return self.peak * factor(step, **self.schedule.model_dump())


def open_session(
    run: RunFile, folder: RunFolder, data: TokenData, *, ranks: Ranks = ALONE, change_world_size: bool = False
) -> Session:
    """Build the run, at its newest intact checkpoint if there is one, else at its start.

    data: as `open_data` gives them. `machine.configure` has been called.
    change_world_size: go on from a checkpoint that another number of ranks has made.
    Raises RefusedError where that is needed and not given.
    """
    spec = run.spec
    ranks.rows(spec.training.global_batch_size)  # whether they can share it at all
    progress, model, optimizer = _newest(spec, folder, ranks, change_world_size=change_world_size)
    several = ranks.size > 1 or spec.training.global_batch_size > spec.training.micro_batch_size
    if several or spec.training.gradient_dtype == "fp32":
        accumulate_in_float32(model.parameters())
    return Session(
        run=run,
        folder=folder,
        model=model,
        optimizer=optimizer,
        batches=TrainBatches(
            data,
            sequences=spec.data.sequences,
            sequence_length=spec.data.sequence_length,
            global_batch_size=spec.training.global_batch_size,
            seed=stream_seed(spec.seed, "data-order"),
        ),
        validation=open_validation(data, spec.data),
        rates=scheduled_rates(spec, optimizer),
        progress=progress,
        ranks=ranks,
    )


def _newest(
    spec: RunSpec, folder: RunFolder, ranks: Ranks, *, change_world_size: bool
) -> tuple[Progress, LlamaForCausalLM, LowPrecisionOptimizer]:
    """The run at the newest checkpoint that all ranks can load, else at its start."""
    unread: list[str] = []
    while True:
        found = ranks.together(
            lambda: checkpoints.newest(
                folder.checkpoints, run_hash=spec.hash, usable=lambda p: _holds_records(folder, p), unread=unread
            )
        )
        progress = Progress() if found is None else found.progress
        _note_world_size(progress, ranks.size, change=change_world_size)
        if found is None:
            return progress, *_start(spec, ranks)
        try:
            restored, fault = _resume(spec, found, ranks), None
        except OtherVersionError as error:
            restored, fault = None, str(error)
        fault = ranks.any_reason(fault)
        if restored is not None and fault is None:
            log.info("resumed from step %d (%s)", progress.step, found.path.name)
            return progress, *restored
        checkpoints.warn(found.path, str(fault))
        unread.append(found.path.name)


def _holds_records(folder: RunFolder, progress: Progress) -> bool:
    """Whether what had been written when a checkpoint was saved is still there: both files go on from it."""
    return holds(folder.metrics, progress.metrics_bytes, progress.metrics_sha256) and holds(
        folder.probes, progress.probes_bytes, progress.probes_sha256
    )


def _note_world_size(progress: Progress, size: int, *, change: bool) -> None:
    """Sums over another number of ranks are in another order: a run keeps its number, unless it is told otherwise."""
    known = progress.world_sizes
    if known and known[-1] != size:
        if not change:
            raise RefusedError(
                f"the checkpoint of step {progress.step} was made by {known[-1]} processes, and this is a training by "
                f"{size}, which would sum in another order: the result would not be the one of an uninterrupted run. "
                f"Start {known[-1]} processes, or give --change-world-size: summary.json then lists both numbers"
            )
        log.warning("from step %d on %d processes train instead of %d", progress.step + 1, size, known[-1])
    if not known or known[-1] != size:
        known.append(size)


def open_data(run: RunFile, folder: RunFolder) -> TokenData:
    """The token files of a run.

    Raises ValueError if they are other data than run.yaml was written for.
    """
    path = data_of(folder, run)
    data = TokenData.open(path)
    for key in ("fingerprint", "tokenizer_fingerprint"):
        expected, found = getattr(run.spec.data, key), data.manifest[key]
        if found != expected:
            raise ValueError(
                f"{path}: data.{key} is {found}, but run.yaml was written for {expected}: make the data of that study "
                "again, or write run.yaml again (mpadam spec)"
            )
    return data


def open_validation(data: TokenData, spec: DataSpec) -> ValidationSet:
    return ValidationSet(
        data,
        sequences=spec.sequences,
        sequence_length=spec.sequence_length,
        tokens=spec.validation_tokens,
        half=spec.validation_half,
    )


def _start(spec: RunSpec, ranks: Ranks) -> tuple[LlamaForCausalLM, LowPrecisionOptimizer]:
    """Initial weights: one float32 draw per seed, which each regime's masters hold as finely as they can."""
    model = compute_model(spec, ranks)
    optimizer = _optimizer(spec, model)
    optimizer.reload_weights(_Drawn(model, spec.seed))
    return model, optimizer


def _resume(spec: RunSpec, found: Checkpoint, ranks: Ranks) -> tuple[LlamaForCausalLM, LowPrecisionOptimizer]:
    """Raises OtherVersionError if what was saved does not fit this model and optimizer."""
    state = found.state()
    model = compute_model(spec, ranks)
    with _fitting():
        load_model_state(model, state)
    optimizer = _optimizer(spec, model)
    with _fitting():
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    return model, optimizer


@contextmanager
def _fitting() -> Iterator[None]:
    """Whatever a stored state makes torch or the optimizer say is OtherVersionError."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # the device's fault
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OtherVersionError(f"its state does not fit: {why[:200]}") from error


def _optimizer(spec: RunSpec, model: LlamaForCausalLM) -> LowPrecisionOptimizer:
    return build_optimizer(
        model,
        spec.optimizer.name,
        spec.optimizer.values,
        masters=weight_format(spec.regime),
        shadow=spec.regime.shadow,
        shadow_dtype=spec.regime.shadow_dtype,
        carry_dtype=spec.regime.carry_dtype,
        state_dtype=spec.optimizer.state_dtype,
        seed=stream_seed(spec.seed, "rounding"),
        compile=spec.training.compile,
    )


class _Drawn(Mapping[Tensor, Tensor]):
    """parameter -> its initial float32 values, drawn when asked for: all at once would double a model's memory."""

    def __init__(self, model: LlamaForCausalLM, seed: int) -> None:
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self._seed = seed

    def __getitem__(self, parameter: Tensor) -> Tensor:
        return initial_value(self._names[parameter], parameter.shape, seed=self._seed)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._names


def scheduled_rates(spec: RunSpec, optimizer: LowPrecisionOptimizer) -> tuple[ScheduledRate, ...]:
    """The rates that schedules move: the branch of each is the optimizer's to say (Madam's `lr` is multiplicative)."""
    schedules = {"additive": spec.training.schedule, "multiplicative": spec.training.schedule_mult}
    return tuple(
        ScheduledRate(key, float(optimizer.defaults[key]), schedules[parameter.schedule])
        for key, parameter in hyperparameters_of(spec.optimizer.name).items()
        if parameter.schedule is not None
    )


def checkpoint_state(session: Session) -> dict[str, Any]:
    """All tensors that the next step depends on."""
    return {
        **model_state(session.model),
        "optimizer": session.optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }


def replicated(session: Session) -> dict[str, Tensor]:
    """What all ranks hold alike after each update: parameters and the stores of their weights, by name."""
    named: dict[str, Tensor] = {}
    for name, parameter in session.model.named_parameters():
        store = session.optimizer.store_of(parameter).tensors
        named |= {name: parameter, **{f"{name}/{key}": tensor for key, tensor in store.items()}}
    return named
