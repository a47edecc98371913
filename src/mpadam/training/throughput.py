"""How fast a run was: tokens/s, model FLOP/s, MFU where it has a meaning, GPU-hours.

Times are those of updates alone, without the first five of each attempt, which load, compile and allocate. FLOPs are
those of the cost model (`mpadam.plan.cost`): attention in full, pads too, nothing for the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpadam.plan.assumptions import GPUS
from mpadam.plan.cost import Shape
from mpadam.study.config import ModelConfig
from mpadam.study.spec import ModelSpec, RunSpec
from mpadam.training.checkpoint import Progress

#: Devices whose peak is known, as CUDA names them: the SXM boards. PCIe and NVL boards of these names are slower.
KNOWN_DEVICES: Mapping[str, str] = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200"}


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
