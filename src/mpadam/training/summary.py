"""`summary.json`: the result of a run, with all that a table needs to know of it."""

from __future__ import annotations

import math
import resource
from typing import Any

import torch
from torch import Tensor

from mpadam.training.folder import sha256
from mpadam.training.loop import Ended
from mpadam.training.session import Session


def summarise(session: Session, ended: Ended) -> dict[str, Any]:
    """The summary of a run that has ended.

    A diverged run has no validation: `val_loss`, `val_ppl` and `val_tokens` are null, `diverged` says what happened.
    """
    progress, spec = session.progress, session.spec
    final = progress.validation[-1] if ended.status == "completed" else {}
    parameters = sum(p.numel() for p in session.model.parameters())
    return {
        "hash": spec.hash,
        "metrics_sha256": sha256(session.folder.metrics),
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
        "tokens_per_s": round(progress.timed_tokens / progress.timed_seconds, 1) if progress.timed_seconds else None,
        "attempts": progress.attempts,
        "peak_memory_bytes": peak_memory_bytes(spec.training.device, progress.peak_memory_bytes),
        "parameters": parameters,
        "bytes_per_parameter": round(stored_bytes(session) / parameters, 4),
        "hyperparameters": hyperparameters(session),
        "spec": spec.model_dump(mode="json"),
    }


def _divergence(session: Session, ended: Ended) -> dict[str, Any]:
    return {"step": ended.step, "reason": ended.reason, "last_finite_loss": session.progress.last_loss}


def hyperparameters(session: Session) -> dict[str, Any]:
    """All values of the optimizer, defaults too; rates at their peak."""
    values = {key: value for key, value in session.optimizer.defaults.items() if key != "seed" and _is_plain(value)}
    return values | {rate.key: rate.peak for rate in session.rates}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))


def stored_bytes(session: Session) -> int:
    """Bytes that stay between steps: parameters, stored weights and states; no gradients, no activations."""
    states = (t for state in session.optimizer.state.values() for t in state.values() if isinstance(t, Tensor))
    return sum(t.untyped_storage().nbytes() for t in (*session.model.parameters(), *states))


def peak_memory_bytes(device: str, earlier: int = 0) -> int:
    """Peak of this process (CPU: resident memory since its start) or of the device, and of earlier attempts."""
    if device == "cuda":
        return max(earlier, torch.cuda.max_memory_allocated())
    return max(earlier, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
