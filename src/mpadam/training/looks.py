"""Looks of a training at its own updates: `probe_every` of run.yaml, the lines of probes.jsonl; and, on logged steps
of runs with NVFP4 masters, the share of blocks stored as zeros (`nvfp4_flushed_share` in metrics.jsonl).

A look comes between the clipped gradients and the step, and once more after it: `mpadam.probes.survey` of what the
step is about to do, and the loss of the same global batch after it. The optimizer then steps as at any other update,
and nothing that a number depends on is touched, so a run has the same bits with and without looks. They take time of
their own, which is left out of the throughput.

The loss after the step is computed as the training loss was: nll in float32 from logits of the compute dtype, FP8
layers in FP8. Their scales are frozen (no magnitude enters a history), and are those of the next step: delayed scaling
moved on when this batch's backward pass was over, so where masters did not move, the loss can still differ by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from mpadam.model.fp8.control import fp8_enabled
from mpadam.model.loss import token_nll
from mpadam.model.products import bf16_products
from mpadam.probes.descent import number
from mpadam.probes.flushed import flushed_by_next_step
from mpadam.probes.layers import survey_layers
from mpadam.probes.survey import survey
from mpadam.study.spec import RunFile
from mpadam.training.gradients import settle_

if TYPE_CHECKING:
    from mpadam.training.loop import Gradients
    from mpadam.training.progress import Meter
    from mpadam.training.session import Session


def is_probed(run: RunFile, step: int) -> bool:
    return run.probe_every is not None and step % run.probe_every == 0


def probed_update(session: Session, gradients: Gradients, meter: Meter) -> dict[str, Any] | None:
    """`loop.update`, looked at; returns the line, or None, nothing done, if loss or gradients are not finite.

    The leading rank looks: all hold the same weights and gradients. All take part in the loss after the step.
    """
    with meter.paused():
        if not bool(gradients.values.isfinite().all()):
            return None
    found = _looked_update(session, gradients, meter, lambda: _surveyed(session))
    with meter.paused():
        losses = {"before": gradients.values[0].item(), "after": number(loss_now(session, gradients.step))}
    return {"step": gradients.step, "loss": losses, **found}


def _surveyed(session: Session) -> dict[str, Any]:
    found = survey(session.model, session.optimizer)
    layers = survey_layers(session.model, session.optimizer) if session.run.probe_layers else {}
    return found | layers


def counted_update(session: Session, gradients: Gradients, meter: Meter) -> float | None:
    """`loop.update`; returns the share of NVFP4 blocks that it stores as zeros, None without any."""
    return flushed_share(_looked_update(session, gradients, meter, lambda: flushed_by_next_step(session.optimizer)))


def flushed_share(found: Mapping[str, int]) -> float | None:
    return found["flushed"] / found["blocks"] if found["blocks"] else None


def _looked_update(
    session: Session, gradients: Gradients, meter: Meter, look: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """`loop.update` with a look of the leading rank between clipping and the step; returns what it saw."""
    spec = session.spec.training
    settle_(gradients.tensors, norm=gradients.values[1], limit=spec.clip_norm, dtype=spec.gradient_dtype)
    with meter.paused():
        found = session.ranks.together(look)
    session.optimizer.step()
    return found


@torch.no_grad()
def loss_now(session: Session, step: int) -> float:
    """Mean loss of global batch `step` with the weights as they are now; see the module for its precision."""
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
