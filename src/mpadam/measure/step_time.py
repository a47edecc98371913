"""Time of optimizer steps: ours by name and masters, and others' that do a comparable work.

| rival               | what it is                                             |
|---------------------|--------------------------------------------------------|
| torch, fused        | torch.optim.AdamW(fused=True), in fp32 and in bf16     |
| torchao, SR         | AdamW with stochastic rounding of bf16 weights         |
| optimi, Kahan       | AdamW with Kahan summation of bf16 weights             |

Every subject is visited once a round, so a slow spell of the machine hits all alike.
"""

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata, util
from typing import Any

import torch
from torch import Tensor, nn

from mpadam.machine import cpu_name, gpu_name
from mpadam.optim.names import parse_optimizer_name
from mpadam.optim.registry import build_optimizer
from mpadam.study.measure import StepTime

GRADIENT = 1e-3  # standard deviation; weights have that of an initialisation
WEIGHT = 0.02
TORCH_FUSED = "torch AdamW, fused"


@dataclass(frozen=True)
class Subject:
    """name: an optimizer of ours, or a rival's label.  masters: how its weights are kept.  step: one update."""

    name: str
    masters: str
    step: Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of a step, a sample a round."""

    name: str
    masters: str
    samples: tuple[float, ...]


def measure_step_time(options: StepTime, *, clock: Callable[[], float] = time.perf_counter) -> list[Timing]:
    """Time every subject.

    Raises ValueError where the device asked for is not there.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda': there is no GPU here; write  device: cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        return time_subjects(
            list(subjects(options)),
            warmup=options.warmup,
            rounds=options.rounds,
            steps=options.steps,
            device=options.device,
            clock=clock,
            first=True,
        )
    finally:
        torch.set_num_threads(threads)


def time_subjects(
    everyone: Sequence[Subject],
    *,
    warmup: int,
    rounds: int,
    steps: int,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
    first: bool = False,
) -> list[Timing]:
    """Time subjects in turn; a sample is the mean of `steps` steps of one visit.

    first: a step before each visit's timing, which brings small weights back into the caches.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None  # a step on a CPU has ended when it returns
    for subject in everyone:
        for _ in range(warmup):
            subject.step()
    samples: list[list[float]] = [[] for _ in everyone]
    for _ in range(rounds):
        for subject, own in zip(everyone, samples, strict=True):
            if first:
                subject.step()
            wait()
            begin = clock()
            for _ in range(steps):
                subject.step()
            wait()
            own.append((clock() - begin) / steps)
    return [Timing(s.name, s.masters, tuple(own)) for s, own in zip(everyone, samples, strict=True)]


def circumstances(options: StepTime) -> dict[str, Any]:
    """What the numbers depend on: device, versions, and how much was updated."""
    versions = {"torch": str(torch.__version__)}
    for rival, package in (("torchao", "torchao"), ("optimi", "torch-optimi")):
        if rival in options.rivals and util.find_spec(rival) is not None:
            versions[rival] = metadata.version(package)
    return {
        "device": device_name(options.device),
        "threads": options.threads if options.device == "cpu" else None,
        "versions": versions,
        "absent": absent(options),
        "parameters": sum(rows * columns for rows, columns in options.shapes),
    }


def device_name(device: str) -> str:
    """The GPU's name, or the processor's as far as the system tells it."""
    return gpu_name(device) or cpu_name() or platform.machine()


# --- what is timed ---------------------------------------------------------------------------------------------------


def subjects(options: StepTime) -> Iterator[Subject]:
    for name in options.optimizers:
        for masters in options.masters:
            if masters == "fp32" and parse_optimizer_name(name).write_back != "nearest":
                continue  # nothing is lost in fp32 that they could save
            yield _ours(name, masters, options)
    for rival in options.rivals:
        if util.find_spec(rival) is not None:
            yield from _RIVALS[rival](options)


def absent(options: StepTime) -> list[str]:
    return [rival for rival in options.rivals if util.find_spec(rival) is None]


def _ours(name: str, masters: str, options: StepTime) -> Subject:
    layers = nn.ModuleList(nn.Linear(columns, rows, bias=False) for rows, columns in options.shapes)
    layers = layers.to(options.device, torch.bfloat16)
    stream = torch.Generator().manual_seed(0)
    for p in layers.parameters():
        with torch.no_grad():
            p.copy_(_normal(p, stream) * WEIGHT)
        p.grad = (_normal(p, stream) * GRADIENT).to(p)
    state_dtype = "fp32" if masters == "fp32" else "bf16"
    optimizer = build_optimizer(layers, name, {}, masters=masters, state_dtype=state_dtype, compile=options.compile)
    return Subject(name, masters, optimizer.step)


def _normal(p: Tensor, stream: torch.Generator) -> Tensor:
    return torch.randn(p.shape, generator=stream)


def _weights(options: StepTime, dtype: torch.dtype) -> list[nn.Parameter]:
    stream = torch.Generator().manual_seed(0)
    weights = []
    for shape in options.shapes:
        p = nn.Parameter((torch.randn(shape, generator=stream) * WEIGHT).to(options.device, dtype))
        p.grad = (_normal(p, stream) * GRADIENT).to(p)
        weights.append(p)
    return weights


def _torch(options: StepTime) -> Iterator[Subject]:
    for masters, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        yield Subject(TORCH_FUSED, masters, torch.optim.AdamW(_weights(options, dtype), fused=True).step)


def _torchao(options: StepTime) -> Iterator[Subject]:
    adamw = import_module("torchao.optim")._AdamW(_weights(options, torch.bfloat16), bf16_stochastic_round=True)
    yield Subject("torchao AdamW, SR", "bf16", adamw.step)


def _optimi(options: StepTime) -> Iterator[Subject]:
    adamw = import_module("optimi").AdamW(_weights(options, torch.bfloat16), lr=1e-3, kahan_sum=True)
    yield Subject("optimi AdamW, Kahan", "bf16", adamw.step)


_RIVALS: dict[str, Callable[[StepTime], Iterator[Subject]]] = {
    "torch": _torch,
    "torchao": _torchao,
    "optimi": _optimi,
}
