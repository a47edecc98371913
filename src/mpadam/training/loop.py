"""The training loop.

An update: gradients of the global batch's mean loss (a token counts the same wherever it stands), a look at whether
all is finite, clipping, the optimizer. A loss or gradient that is not finite ends the run *before* the update, as
`diverged`: weights, moments and rounding streams stay as they were after the last good step.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpadam.model.loss import loss_sum
from mpadam.training import checkpoint as checkpoints
from mpadam.training.evaluation import evaluate, to_tensors
from mpadam.training.gradients import clip_, global_norm, round_to_bf16_
from mpadam.training.metrics import MetricsFile
from mpadam.training.progress import ProgressLine
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

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


@dataclass(frozen=True)
class Ended:
    """How training ended: `completed`, `diverged` (at a step, with the last finite loss) or `stopped` (why)."""

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
            return _train(session, stop, metrics, line)
        finally:
            session.progress.metrics_bytes = metrics.sync()


def _train(session: Session, stop: Stopper, metrics: MetricsFile, line: ProgressLine) -> Ended:
    spec, progress = session.spec.training, session.progress
    clock, tokens_then = time.perf_counter(), progress.target_tokens
    since_log = clock
    for step in range(progress.step + 1, spec.steps + 1):
        rates = set_rates(session, step)
        gradients = backward(session, step)
        if not gradients.finite:
            what = f"loss {gradients.loss}" if not math.isfinite(gradients.loss) else f"gradient norm {gradients.norm}"
            return Ended("diverged", step, what)
        update(session, gradients)
        _advance(session, step, gradients)
        if step % spec.log_every == 0 or step in (1, spec.steps):
            now = time.perf_counter()
            rate = (progress.target_tokens - tokens_then) / (now - since_log)
            since_log, tokens_then = now, progress.target_tokens
            record = {
                "step": step,
                "positions": progress.positions,
                "target_tokens": progress.target_tokens,
                "loss": gradients.loss,
                **rates,
                "grad_norm": gradients.norm,
                "tokens_per_s": round(rate, 1),
            }
            metrics.append(record)
            line.show(record)
        if step == spec.steps or (spec.evaluate_every and step % spec.evaluate_every == 0):
            _validate(session, step)
        clock = _count_time(session, clock)
        reason = stop.reason if step < spec.steps else None
        if reason or (step % session.run.checkpoint_every == 0 and step < spec.steps):
            save(session, metrics)
            clock = _count_time(session, clock)
        if reason:
            return Ended("stopped", step, reason)
    return Ended("completed", spec.steps)


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
    for micro in range(0, len(input_ids), spec.micro_batch_size):
        rows = slice(micro, micro + spec.micro_batch_size)
        loss, nll = loss_sum(session.model, input_ids[rows], labels[rows], scale=scale)
        loss.backward()
        total += nll
    tensors = [p.grad for p in session.model.parameters() if p.grad is not None]
    loss_value, norm = torch.stack([total * scale, global_norm(tensors).double()]).tolist()
    return Gradients(loss_value, norm, tensors, input_ids.numel(), batch.target_tokens)


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


def _validate(session: Session, step: int) -> None:
    result = evaluate(session.model, session.validation.batches(session.spec.training.evaluation_batch_size))
    entry: dict[str, Any] = {"step": step, "loss": result.loss, "perplexity": result.perplexity}
    session.progress.validation.append({**entry, "tokens": result.tokens})


def _count_time(session: Session, since: float) -> float:
    now = time.perf_counter()
    session.progress.seconds += now - since
    return now


def save(session: Session, metrics: MetricsFile) -> None:
    """Write a checkpoint of the step just finished, and delete those no longer needed."""
    session.progress.metrics_bytes = metrics.sync()
    root = session.folder.checkpoints
    checkpoints.save(root, run_hash=session.spec.hash, progress=session.progress, state=checkpoint_state(session))
    checkpoints.retain(root)
