"""Timing of optimizer steps: every subject is visited once a round, so a slow spell of the machine hits all alike."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any

import torch

from mpadam.machine import cpu_name, gpu_name
from mpadam.measure.subjects import Subject, absent, parameters, subjects
from mpadam.study.measure import StepTime


@dataclass(frozen=True)
class Timing:
    """Seconds of a step, a sample a round."""

    name: str
    masters: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def measure_step_time(options: StepTime, *, clock: Callable[[], float] = time.perf_counter) -> list[Timing]:
    """Time every subject.

    Raises ValueError where the device asked for is not there.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda': there is no GPU here; write  device: cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        return _time_all(list(subjects(options)), options, clock)
    finally:
        torch.set_num_threads(threads)


def _time_all(everyone: Sequence[Subject], options: StepTime, clock: Callable[[], float]) -> list[Timing]:
    return time_subjects(
        everyone,
        warmup=options.warmup,
        rounds=options.rounds,
        steps=options.steps,
        device=options.device,
        clock=clock,
        first=True,
    )


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
    wait = torch.cuda.synchronize if device == "cuda" else _nothing
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


def _nothing() -> None:
    """A CPU's step has ended when it returns."""


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
        "parameters": parameters(options.shapes),
    }


def device_name(device: str) -> str:
    """The GPU's name, or the processor's as far as the system tells it."""
    return gpu_name(device) or cpu_name() or platform.machine()
