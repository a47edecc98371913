"""The training loop.

An update: gradients of the global batch's mean loss (every token has the same weight), a check that all is finite,
clipping, the optimizer. A loss or gradient that is not finite ends the run as `diverged`, and with
`check_nonfinite_every: 1` *before* the update: weights, moments and rounding streams stay as they were after the last
good step. With a larger number it is noticed later, at the latest before anything is logged, validated or saved; step
and last finite loss are the same, and so is every number of a run that stays finite.

With several ranks, each of them takes all the steps here; what only one may do is `ranks.together`.

Probes of a training's own updates: `probe_every` of run.yaml, the lines of probes.jsonl; and, on logged steps of
runs with NVFP4 masters, the share of blocks stored as zeros (`nvfp4_flushed_share` in metrics.jsonl). A probe comes
between the clipped gradients and the step, and once more after it: `mpadam.probes.survey` of what the step is about to
do, and the loss of the same global batch after it. The optimizer then steps as at any other update, and nothing that a
number depends on is touched, so a run has the same bits with and without probes. They take time of their own, which is
left out of the throughput.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mpadam.data import Batch
from mpadam.model.fp8.control import fp8_enabled, fp8_step
from mpadam.model.loss import loss_sum, token_nll
from mpadam.model.products import bf16_products
from mpadam.probes.descent import number
from mpadam.probes.flushed import flushed_by_next_step, flushing
from mpadam.probes.layers import survey_layers
from mpadam.probes.survey import survey
from mpadam.study.spec import RunFile, TrainingSpec
from mpadam.training import checkpoint as checkpoints
from mpadam.training.evaluation import evaluate
from mpadam.training.gradients import global_norm, settle_, sum_over_ranks_
from mpadam.training.progress import Meter
from mpadam.training.records import Records, open_records
from mpadam.training.session import Session, checkpoint_state, replicated
from mpadam.training.stopping import Stopper


@dataclass(frozen=True)
class Gradients:
    """What the backward passes of one update gave.

    values: mean loss and global norm, float64 (2,) on the device, the same bits on all ranks; nobody has waited for
        them yet.
    tensors: the gradients, summed over all ranks.
    positions, target_tokens: of the whole global batch.
    flushed_share: of the gradients of FP8 layers, on logged steps.
    """

    step: int
    values: Tensor
    tensors: list[Tensor]
    positions: int
    target_tokens: int
    flushed_share: float | None = None


@dataclass(frozen=True)
class Ended:
    """How training ended: `completed`, `diverged` (at which update, what was not finite) or `stopped` (why).

    updates: how many the weights have had.
    """

    status: str
    step: int
    reason: str | None = None
    updates: int = 0


def train(session: Session, stop: Stopper, *, guard: Callable[[], None] = lambda: None) -> Ended:
    """Train from where the session stands to the end, to divergence, or until it has to stop.

    Metrics are appended and checkpoints saved on the way; when it stops, the finished step is saved.
    guard: called before anything is written; raises if this process may not write any more.
    """
    records = open_records(session, guard)
    try:
        ended = _steps(session, stop, records)
        records.sync(session.progress)
        return ended
    finally:
        records.close()


def _steps(session: Session, stop: Stopper, records: Records) -> Ended:
    spec, progress, ranks = session.spec.training, session.progress, session.ranks
    meter = Meter(progress, ranks=ranks.size)
    unseen: list[Gradients] = []
    if ended := _validated(session, stop, records, meter):  # an evaluation that an earlier attempt was stopped in
        return ended
    for step in range(progress.step + 1, spec.steps + 1):
        meter.start()
        rates = set_rates(session, step)
        gradients = backward(session, step)
        unseen.append(replace(gradients, tensors=[]))  # whose memory would be kept until the next check
        if is_checked(session, step) and (diverged := check(session, unseen, updates=step - 1)):
            return diverged
        probed = is_probed(session.run, step) and probed_update(session, gradients, meter)
        flushed = None
        if probed and "nvfp4" in probed:
            flushed = flushed_share(probed["nvfp4"])
        elif not probed and is_logged(spec, step) and flushing(session.optimizer):
            flushed = counted_update(session, gradients, meter)
        elif not probed:
            update(session, gradients)
        meter.stop(gradients.target_tokens, gradients.positions)
        if probed:
            ranks.together(partial(records.probe, probed))
        last = step == spec.steps
        if is_logged(spec, step):
            record = _record(session, gradients, rates, meter.tokens_per_s(), flushed)
            ranks.together(partial(records.step, record))
        if ended := _validated(session, stop, records, meter):
            return ended
        reason = None if last else ranks.any_reason(stop.reason)
        if reason or is_saved(session, step):
            if unseen and (diverged := check(session, unseen, updates=step)):
                return diverged
            save(session, records)
            meter.count()
        if reason:
            return Ended("stopped", step, reason, updates=step)
    return Ended("completed", spec.steps, updates=spec.steps)


def _validated(session: Session, stop: Stopper, records: Records, meter: Meter) -> Ended | None:
    """Validate the weights as they are, if that is due and has not been done; `Ended` where training ends in it.

    A signal ends the evaluation between two batches: the state before it is saved, and the next attempt begins with the
    evaluation. The time budget does not, or an evaluation that takes longer than the budget would never end.
    """
    progress, step = session.progress, session.progress.step
    done = bool(progress.validation) and progress.validation[-1]["step"] == step
    due = is_validated(session.spec.training, step) and step > 0 and not done
    try:
        fault = validate(session, records, stop) if due else None
        meter.count()
    except EvaluationStoppedError as stopped:
        meter.count()
        save(session, records)
        meter.count()
        return Ended("stopped", step, str(stopped), updates=step)
    return None if fault is None else Ended("diverged", step, fault, updates=step)


def is_logged(spec: TrainingSpec, step: int) -> bool:
    """Whether update `step` gets a line in metrics.jsonl."""
    return step in (1, spec.steps) or step % spec.log_every == 0


def is_validated(spec: TrainingSpec, step: int) -> bool:
    """Whether the model is validated after update `step`."""
    return step == spec.steps or (spec.evaluate_every is not None and step % spec.evaluate_every == 0)


def is_saved(session: Session, step: int) -> bool:
    """Whether there is a checkpoint after update `step`; at the end the results take its place."""
    return step < session.spec.training.steps and step % session.run.checkpoint_every == 0


def is_checked(session: Session, step: int) -> bool:
    """Whether update `step` waits until it is known that its gradients are finite."""
    spec = session.spec.training
    written = is_logged(spec, step) or is_validated(spec, step) or is_saved(session, step)
    return written or step % spec.check_nonfinite_every == 0


def check(session: Session, unseen: list[Gradients], *, updates: int) -> Ended | None:
    """Read what has not been checked yet, and count it as progress; `Ended` at the first that is not finite."""
    progress, values = session.progress, torch.stack([gradients.values for gradients in unseen]).tolist()
    for gradients, (loss, norm) in zip(unseen, values, strict=True):
        if fault := _fault(loss, norm):
            return Ended("diverged", gradients.step, fault, updates=updates)
        progress.step, progress.last_loss = gradients.step, loss
        progress.positions += gradients.positions
        progress.target_tokens += gradients.target_tokens
    unseen.clear()
    return None


def _fault(loss: float, norm: float) -> str | None:
    """What is not finite, or None."""
    if not math.isfinite(loss):
        return f"training loss {loss}"
    return None if math.isfinite(norm) else f"gradient norm {norm}"


def set_rates(session: Session, step: int) -> dict[str, float]:
    """Give the optimizer the rates of this update; returns them by name."""
    rates = {rate.key: rate.at(step) for rate in session.rates}
    for group in session.optimizer.param_groups:
        group.update(rates)
    return rates


def backward(session: Session, step: int) -> Gradients:
    """Gradients of the mean loss over the target tokens of global batch `step`: this rank's rows micro-batch by
    micro-batch, then summed over all ranks."""
    spec, device, ranks = session.spec.training, session.spec.training.device, session.ranks
    batch = session.feed.take(step)
    positions, target_tokens = ranks.total(batch.positions, batch.target_tokens)
    scale = 1.0 / max(1, target_tokens)
    session.optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64, device=device)
    counted = is_logged(spec, step)
    with fp8_step(session.model, count_flushed=counted) as flushed, bf16_products(spec.bf16_products):
        for start in range(0, len(batch.input_ids), spec.micro_batch_size):
            rows = slice(start, start + spec.micro_batch_size)
            ids, labels = batch.input_ids[rows], batch.labels[rows]
            loss, nll = loss_sum(session.model, ids, labels, scale=scale, compiled=spec.compile_passes)
            loss.backward()
            total += nll
    tensors = [p.grad for p in session.model.parameters() if p.grad is not None]
    sum_over_ranks_(tensors, ranks)
    values = torch.stack([ranks.sum_(total) * scale, global_norm(tensors).double()])
    if step < spec.steps:
        session.feed.prepare(step + 1)  # before the host waits for a GPU, if it does
    return Gradients(step, ranks.as_leading_(values), tensors, positions, target_tokens, flushed.share)


def update(session: Session, gradients: Gradients) -> None:
    """Clip, round to the gradient's dtype, and let the optimizer step."""
    _settle(session, gradients)
    session.optimizer.step()


def _settle(session: Session, gradients: Gradients) -> None:
    spec = session.spec.training
    settle_(gradients.tensors, norm=gradients.values[1], limit=spec.clip_norm, dtype=spec.gradient_dtype)


def _record(
    session: Session, gradients: Gradients, rates: dict[str, float], tokens_per_s: float, nvfp4_flushed: float | None
) -> dict[str, int | float]:
    """A line of metrics.jsonl; positions and target tokens are those seen so far."""
    progress = session.progress
    loss, norm = gradients.values.tolist()
    shares = {"fp8_flushed_share": gradients.flushed_share, "nvfp4_flushed_share": nvfp4_flushed}
    return {
        "step": progress.step,
        "positions": progress.positions,
        "target_tokens": progress.target_tokens,
        "loss": loss,
        **rates,
        "grad_norm": norm,
        **{key: share for key, share in shares.items() if share is not None},
        "tokens_per_s": round(tokens_per_s, 1),
    }


class EvaluationStoppedError(Exception):
    """An evaluation was left between two batches because of a signal, which the message names."""


def _until_signal(session: Session, stop: Stopper) -> Iterator[Batch]:
    """The validation batches of this rank. All ranks ask equally often, though some may have one batch fewer."""
    size, ranks = session.spec.training.evaluation_batch_size, session.ranks
    most = range(0, len(session.validation), size * ranks.size)
    batches = session.validation.batches(size, rank=ranks.rank, world_size=ranks.size)
    for _, batch in itertools.zip_longest(most, batches):
        if reason := ranks.any_reason(stop.signal):
            raise EvaluationStoppedError(reason)
        if batch is not None:
            yield batch


def validate(session: Session, records: Records, stop: Stopper) -> str | None:
    """Evaluate the model and keep the result; returns what was not finite, or None.

    Raises EvaluationStoppedError, nothing kept, where a signal comes first.
    """
    spec, ranks = session.spec, session.ranks
    batches = _until_signal(session, stop)
    with bf16_products(spec.training.bf16_products):
        compiled = spec.training.compile_passes
        result = evaluate(session.model, batches, fp8=spec.regime.fp8_eval, compiled=compiled, ranks=ranks)
    if not math.isfinite(result.perplexity):
        return f"validation loss {result.loss}"
    entry = {
        "step": session.progress.step,
        "loss": result.loss,
        "perplexity": result.perplexity,
        "tokens": result.tokens,
    }
    session.progress.validation.append(entry)
    ranks.together(lambda: records.validation(entry))
    return None


def save(session: Session, records: Records) -> None:
    """Write a checkpoint of the step just finished, and delete those no longer needed.

    Raises RuntimeError if the ranks do not hold the same weights: then none of them is worth keeping.
    """
    session.ranks.check_same(replicated(session))
    session.ranks.together(lambda: _write_checkpoint(session, records))


def _write_checkpoint(session: Session, records: Records) -> None:
    records.sync(session.progress)
    root = session.folder.checkpoints
    state = checkpoint_state(session)
    saved = checkpoints.save(root, run_hash=session.spec.hash, progress=session.progress, state=state)
    checkpoints.retain(root, saved=saved)


# --- probes of updates ------------------------------------------------------------------------------------------------


def is_probed(run: RunFile, step: int) -> bool:
    return run.probe_every is not None and step % run.probe_every == 0


def probed_update(session: Session, gradients: Gradients, meter: Meter) -> dict[str, Any] | None:
    """`update` with a probe; returns the line, or None, nothing done, if loss or gradients are not finite.

    The leading rank probes: all hold the same weights and gradients. All take part in the loss after the step.
    """
    with meter.paused():
        if not bool(gradients.values.isfinite().all()):
            return None

    def probe() -> dict[str, Any]:
        layers = survey_layers(session.model, session.optimizer) if session.run.probe_layers else {}
        return survey(session.model, session.optimizer) | layers

    found = _observed_update(session, gradients, meter, probe)
    with meter.paused():
        losses = {"before": gradients.values[0].item(), "after": number(loss_now(session, gradients.step))}
    return {"step": gradients.step, "loss": losses, **found}


def counted_update(session: Session, gradients: Gradients, meter: Meter) -> float | None:
    """`update`; returns the share of NVFP4 blocks that it stores as zeros, None without any."""
    return flushed_share(_observed_update(session, gradients, meter, lambda: flushed_by_next_step(session.optimizer)))


def flushed_share(found: Mapping[str, int]) -> float | None:
    return found["flushed"] / found["blocks"] if found["blocks"] else None


def _observed_update(
    session: Session, gradients: Gradients, meter: Meter, probe: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """`update` with a probe by the leading rank between clipping and the step; returns what it gave."""
    _settle(session, gradients)
    with meter.paused():
        found = session.ranks.together(probe)
    session.optimizer.step()
    return found


@torch.no_grad()
def loss_now(session: Session, step: int) -> float:
    """Mean loss of global batch `step` with the weights as they are now.

    It is computed as the training loss was: nll in float32 from logits of the compute dtype, FP8 layers in FP8. Their
    scales are frozen (no magnitude enters a history), and are those of the next step: delayed scaling moved on when
    this batch's backward pass was over, so where masters did not move, the loss can still differ by that.
    """
    spec, ranks = session.spec.training, session.ranks
    batch = session.feed.read(step)
    (target_tokens,) = ranks.total(batch.target_tokens)
    total = torch.zeros((), dtype=torch.float64, device=spec.device)
    with fp8_enabled(session.model, True), bf16_products(spec.bf16_products):
        for start in range(0, len(batch.input_ids), spec.micro_batch_size):
            rows = slice(start, start + spec.micro_batch_size)
            nll = token_nll(session.model, batch.input_ids[rows], batch.labels[rows], compiled=spec.compile_passes)
            total += nll.sum(dtype=torch.float64)
    return ranks.as_leading_(ranks.sum_(total)).item() / max(1, target_tokens)
