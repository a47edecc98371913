"""The training loop.

An update: gradients of the global batch's mean loss (a token counts the same wherever it stands), a look at whether
all is finite, clipping, the optimizer. A loss or gradient that is not finite ends the run *before* the update, as
`diverged`: weights, moments and rounding streams stay as they were after the last good step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mpadam.model.fp8.control import fp8_step
from mpadam.model.loss import loss_sum
from mpadam.study.spec import TrainingSpec
from mpadam.training import checkpoint as checkpoints
from mpadam.training.evaluation import evaluate, to_tensors
from mpadam.training.gradients import clip_, global_norm, round_to_bf16_
from mpadam.training.metrics import MetricsFile
from mpadam.training.progress import Meter, ProgressLine
from mpadam.training.session import Session, checkpoint_state
from mpadam.training.stopping import Stopper


@dataclass(frozen=True)
class Gradients:
    """What the backward passes of one update gave: mean loss, global norm, and what was seen."""

    loss: float
    norm: float
    tensors: list[Tensor]
    positions: int
    target_tokens: int
    flushed_share: float | None = None  # of the gradients of FP8 layers, on logged steps

    @property
    def fault(self) -> str | None:
        """What is not finite, or None."""
        if not math.isfinite(self.loss):
            return f"training loss {self.loss}"
        return None if math.isfinite(self.norm) else f"gradient norm {self.norm}"


@dataclass(frozen=True)
class Ended:
    """How training ended: `completed`, `diverged` (at which update, what was not finite) or `stopped` (why)."""

    status: str
    step: int
    reason: str | None = None


def train(session: Session, stop: Stopper) -> Ended:
    """Train from where the session stands to the end, to divergence, or until it has to stop.

    Metrics are appended and checkpoints saved on the way; when it stops, the finished step is saved.
    """
    line = ProgressLine(session.spec.training.steps, done=session.progress.step)
    with MetricsFile(session.folder.metrics, offset=session.progress.metrics_bytes) as metrics:
        try:
            return _steps(session, stop, metrics, line)
        finally:
            line.close()
            session.progress.metrics_bytes = metrics.sync()


def _steps(session: Session, stop: Stopper, metrics: MetricsFile, line: ProgressLine) -> Ended:
    spec, progress = session.spec.training, session.progress
    meter = Meter(progress)
    for step in range(progress.step + 1, spec.steps + 1):
        meter.start()
        rates = set_rates(session, step)
        gradients = backward(session, step)
        if gradients.fault:
            return Ended("diverged", step, gradients.fault)
        update(session, gradients)
        _advance(session, step, gradients)
        meter.stop(gradients.target_tokens)
        last = step == spec.steps
        if is_logged(spec, step):
            record = _record(session, gradients, rates, meter.tokens_per_s())
            metrics.append(record)
            line.show(record)
        if last or (spec.evaluate_every and step % spec.evaluate_every == 0):
            fault = validate(session)
            if fault:
                return Ended("diverged", step, fault)
        meter.count()
        reason = None if last else stop.reason
        if reason or (not last and step % session.run.checkpoint_every == 0):
            save(session, metrics)
            meter.count()
        if reason:
            return Ended("stopped", step, reason)
    return Ended("completed", spec.steps)


def is_logged(spec: TrainingSpec, step: int) -> bool:
    """Whether update `step` gets a line in metrics.jsonl."""
    return step in (1, spec.steps) or step % spec.log_every == 0


def set_rates(session: Session, step: int) -> dict[str, float]:
    """Give the optimizer the rates of this update; returns them by name."""
    rates = {rate.key: rate.at(step) for rate in session.rates}
    for group in session.optimizer.param_groups:
        group.update(rates)
    return rates


def backward(session: Session, step: int) -> Gradients:
    """Gradients of the mean loss over the target tokens of global batch `step`, micro-batch by micro-batch."""
    spec, device = session.spec.training, session.spec.training.device
    batch = session.batches.batch(step - 1)  # which counts from 0
    input_ids, labels = to_tensors(batch, device)
    scale = 1.0 / max(1, batch.target_tokens)
    session.optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64, device=device)
    with fp8_step(session.model, count_flushed=is_logged(spec, step)) as flushed:
        for start in range(0, len(input_ids), spec.micro_batch_size):
            rows = slice(start, start + spec.micro_batch_size)
            loss, nll = loss_sum(session.model, input_ids[rows], labels[rows], scale=scale)
            loss.backward()
            total += nll
    tensors = [p.grad for p in session.model.parameters() if p.grad is not None]
    loss_value, norm = torch.stack([total * scale, global_norm(tensors).double()]).tolist()
    return Gradients(loss_value, norm, tensors, input_ids.numel(), batch.target_tokens, flushed.share)


def update(session: Session, gradients: Gradients) -> None:
    """Clip, round to the gradient's dtype, and let the optimizer step."""
    clip_(gradients.tensors, norm=gradients.norm, limit=session.spec.training.clip_norm)
    if session.spec.training.gradient_dtype == "bf16":
        round_to_bf16_(gradients.tensors)
    session.optimizer.step()


def _advance(session: Session, step: int, gradients: Gradients) -> None:
    progress = session.progress
    progress.step, progress.last_loss = step, gradients.loss
    progress.positions += gradients.positions
    progress.target_tokens += gradients.target_tokens


def _record(
    session: Session, gradients: Gradients, rates: dict[str, float], tokens_per_s: float
) -> dict[str, int | float]:
    """A line of metrics.jsonl; positions and target tokens are those seen so far."""
    progress = session.progress
    return {
        "step": progress.step,
        "positions": progress.positions,
        "target_tokens": progress.target_tokens,
        "loss": gradients.loss,
        **rates,
        "grad_norm": gradients.norm,
        **({} if gradients.flushed_share is None else {"fp8_flushed_share": gradients.flushed_share}),
        "tokens_per_s": round(tokens_per_s, 1),
    }


def validate(session: Session) -> str | None:
    """Evaluate the model and keep the result; returns what was not finite, or None."""
    batches = session.validation.batches(session.spec.training.evaluation_batch_size)
    result = evaluate(session.model, batches, fp8=session.spec.regime.fp8_eval)
    if not math.isfinite(result.perplexity):
        return f"validation loss {result.loss}"
    session.progress.validation.append(
        {
            "step": session.progress.step,
            "loss": result.loss,
            "perplexity": result.perplexity,
            "tokens": result.tokens,
        }
    )
    return None


def save(session: Session, metrics: MetricsFile) -> None:
    """Write a checkpoint of the step just finished, and delete those no longer needed."""
    session.progress.metrics_bytes = metrics.sync()
    root = session.folder.checkpoints
    checkpoints.save(root, run_hash=session.spec.hash, progress=session.progress, state=checkpoint_state(session))
    checkpoints.retain(root)
