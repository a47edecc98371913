"""`summary.json`: the result of a run, with all that a table needs to know of it."""

from __future__ import annotations

import resource
import sys
from typing import Any

import torch

from mpadam.machine import gpu_name
from mpadam.optim.hyperparameters import check_hyperparameters
from mpadam.optim.memory import bytes_per_parameter
from mpadam.stored import sha256
from mpadam.training.loop import Ended
from mpadam.training.session import Session
from mpadam.training.throughput import speed


def summarise(session: Session, ended: Ended) -> dict[str, Any]:
    """The summary of a run that has ended.

    A diverged run has no validation: `val_loss`, `val_ppl` and `val_tokens` are null, `diverged` says what happened.
    """
    progress, spec = session.progress, session.spec
    final = progress.validation[-1] if ended.status == "completed" else {}
    return {
        "hash": spec.hash,
        "metrics_sha256": sha256(session.folder.metrics),
        **({"probes_sha256": probes} if (probes := sha256(session.folder.probes)) else {}),
        "status": ended.status,
        "diverged": None if ended.status == "completed" else _divergence(session, ended),
        "labels": session.run.labels.model_dump(mode="json"),
        "val_loss": final.get("loss"),
        "val_ppl": final.get("perplexity"),
        "val_tokens": final.get("tokens"),
        "train_loss": progress.last_loss,
        "validation": progress.validation,
        "steps": progress.step,
        "positions": progress.positions,
        "target_tokens": progress.target_tokens,
        "seconds": round(progress.seconds, 3),
        **speed(progress, spec, world_size=session.ranks.size, device_name=gpu_name(spec.training.device)),
        "attempts": progress.attempts,
        "world_size": session.ranks.size,
        "world_sizes": progress.world_sizes,
        "peak_memory_bytes": progress.peak_memory_bytes,
        "parameters": sum(p.numel() for p in session.model.parameters()),
        "bytes_per_parameter": stored_bytes_per_parameter(session),
        "hyperparameters": check_hyperparameters(spec.optimizer.name, spec.optimizer.values),
        "spec": spec.model_dump(mode="json"),
    }


def _divergence(session: Session, ended: Ended) -> dict[str, Any]:
    return {
        "step": ended.step,
        "reason": ended.reason,
        "last_finite_loss": session.progress.last_loss,
        "updates_of_weights": ended.updates,
    }


def stored_bytes_per_parameter(session: Session) -> float:
    """Bytes that stay between steps: stored weights, compute copies and states; no gradients, no activations."""
    measured = bytes_per_parameter(session.optimizer)
    return round(measured.weight + measured.compute_copy + measured.states, 4)


def reset_peak_memory(device: str) -> None:
    """Count the device's peak from now on; that of a process cannot be reset."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory_bytes(device: str, earlier: int = 0) -> int:
    """Peak of this process (CPU: resident memory since its start) or of the device, and of earlier attempts."""
    if device == "cuda":
        return max(earlier, torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return max(earlier, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
