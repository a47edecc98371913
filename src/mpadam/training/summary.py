"""`summary.json`: the result of a run, with all that a table needs to know of it, and how fast it was.

Tokens/s, model FLOP/s and MFU are of the updates alone, without the first five of each attempt, which load, compile and
allocate. FLOPs are those of the cost model (`mpadam.plan.cost`): attention in full, pads too, none of the optimizer.
"""

import resource
import sys
from collections.abc import Mapping
from typing import Any

import torch

from mpadam.machine import gpu_name
from mpadam.optim.memory import bytes_per_parameter
from mpadam.optim.names import check_hyperparameters
from mpadam.plan.assumptions import GPUS
from mpadam.plan.cost import Shape
from mpadam.stored import sha256
from mpadam.study.run_config import ModelConfig
from mpadam.study.spec import ModelSpec, RunSpec
from mpadam.training.checkpoint import Progress
from mpadam.training.loop import Ended
from mpadam.training.session import Session

#: Devices whose peak is known, as CUDA names them: the SXM boards. PCIe and NVL boards of these names are slower.
KNOWN_DEVICES: Mapping[str, str] = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200"}


def summarise(session: Session, ended: Ended) -> dict[str, Any]:
    """The summary of a run that has ended.

    A diverged run has no validation: `val_loss`, `val_ppl` and `val_tokens` are null, `diverged` says what happened.
    """
    progress, spec = session.progress, session.spec
    final = progress.validation[-1] if ended.status == "completed" else {}
    diverged = {
        "step": ended.step,
        "reason": ended.reason,
        "last_finite_loss": progress.last_loss,
        "updates_of_weights": ended.updates,
    }
    stored = bytes_per_parameter(session.optimizer)
    return {
        "hash": spec.hash,
        "metrics_sha256": sha256(session.folder.metrics),
        **({"probes_sha256": probes} if (probes := sha256(session.folder.probes)) else {}),
        "status": ended.status,
        "diverged": None if ended.status == "completed" else diverged,
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
        "bytes_per_parameter": round(stored.weight + stored.compute_copy + stored.states, 4),  # between steps
        "hyperparameters": check_hyperparameters(spec.optimizer.name, spec.optimizer.values),
        "spec": spec.model_dump(mode="json"),
    }


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


# --- speed ------------------------------------------------------------------------------------------------------------


def flops_per_position(model: ModelSpec) -> int:
    """FLOPs of forward and backward, a position of a sequence."""
    return Shape(ModelConfig(**vars(model.size), steps_1x=1), model.vocab_size, model.sequence_length).flops.training


def speed(progress: Progress, spec: RunSpec, *, world_size: int, device_name: str | None) -> dict[str, Any]:
    """Fields of the summary; None where nothing was timed, or a number would have no meaning.

    device_name: of the GPU, None on a CPU.
    """
    seconds = progress.timed_seconds
    flops = flops_per_position(spec.model) * progress.timed_positions / seconds if seconds else None
    return {
        "tokens_per_s": round(progress.timed_tokens / seconds, 1) if seconds else None,
        "model_flops_per_s": None if flops is None else float(f"{flops:.4g}"),
        "mfu": None if flops is None else mfu(flops, spec, world_size=world_size, device_name=device_name),
        "gpu_hours": round(progress.device_seconds / 3600, 4) if device_name else None,
    }


def mfu(flops_per_s: float, spec: RunSpec, *, world_size: int, device_name: str | None) -> float | None:
    """Share of the devices' bf16 peak; None for FP8 compute, whose products have another peak, and unknown devices."""
    gpu = KNOWN_DEVICES.get(device_name or "")
    if gpu is None or spec.regime.compute != "bf16":
        return None
    return round(flops_per_s / (world_size * GPUS[gpu].peak["bf16"]), 4)
