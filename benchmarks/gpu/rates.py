"""Tokens per second and peak memory of trainings, against what `mpadam plan` assumes of this GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gpu.parts import Case, NotHereError, Row, Setting, apart
from gpu.runs import forget, train_here, write_run
from mpadam.optim.names import parse_optimizer_name
from mpadam.plan.assumptions import GPU_OVERHEAD_BYTES, GPUS, HEAD_ROOM
from mpadam.plan.cost import Shape, gpu_bytes, gpu_step_seconds
from mpadam.study.config import StudyConfig

STEPS = 16
"""Of which training leaves the first five out of its throughput. FP8 counts more where a step is logged."""
MICRO_BATCHES = 2
KINDS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"regime": "bf16-bf16"},
    "native FP8": {"regime": "bf16-fp8", "fp8_backend": "native"},
    "Transformer Engine": {"regime": "bf16-fp8", "fp8_backend": "transformer_engine"},
}


def cases(setting: Setting) -> Iterator[Case]:
    """Each size of the study, in bf16 and in FP8."""
    for size in setting.sizes:
        for kind in KINDS:
            yield Case(f"{size}, {kind}", partial(compare, size, kind, setting))


def compare(size: str, kind: str, setting: Setting) -> list[Row]:
    """A short training at the study's micro-batch."""
    if setting.device == "cpu":
        raise NotHereError("the plan's rates and memory are those of a GPU, and this check runs on the CPU")
    config, changes = setting.config, dict(KINDS[kind])
    micro = config.micro_batch_size(size)
    amounts: dict[str, Any] = {"global_batch_size": MICRO_BATCHES * micro, "micro_batch_size": micro}
    times: dict[str, Any] = {"steps": STEPS, "log_every": STEPS, "checkpoint_every": STEPS}
    folder = write_run(setting, f"{size}, {kind}, plan", model=size, **changes, **amounts, **times)
    found = apart(train_here, folder)
    forget(folder)
    gpu = next((name for name in GPUS if name in found["gpu"].lower()), None)
    if gpu is None:
        raise NotHereError(f"the plan knows {', '.join(GPUS)}, and this is a {found['gpu']}")
    shape = Shape(config.models[size], setting.vocabulary, config.data.sequence_length)
    seconds, memory = _planned(config, shape, gpu, changes.pop("regime"), {**amounts, **changes})
    rate = found["target_tokens"] / STEPS / seconds
    values = {
        "tokens/s": found["tokens_per_s"],
        "tokens/s planned": rate,
        "of plan": found["tokens_per_s"] / rate,
        "peak GB": found["peak_bytes"] / 1e9,
        "peak GB planned": (memory - GPU_OVERHEAD_BYTES) / 1e9,
        "sequences": MICRO_BATCHES * micro,
    }
    faults = []
    if rate > HEAD_ROOM * found["tokens_per_s"]:
        faults.append(f"slower than the limit of its jobs allows ({HEAD_ROOM} times the plan)")
    if found["peak_bytes"] > memory:
        faults.append("more memory than planned")
    return [Row(f"{size}, {kind}", values, "; ".join(faults))]


def _planned(
    config: StudyConfig, shape: Shape, gpu: str, regime: str, changes: Mapping[str, Any]
) -> tuple[float, float]:
    """Seconds of a step and bytes at its peak on one GPU, with what `changes` says of the section `training`."""
    training, name = config.training.model_copy(update=changes), parse_optimizer_name("m-plus-adam")
    kept = config.regimes[regime]
    seconds = gpu_step_seconds(shape, kept, name, training, gpu=GPUS[gpu], gpus=1)
    return seconds, gpu_bytes(shape, kept, name, training, gpus=1)
