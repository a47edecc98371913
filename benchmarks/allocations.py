"""How many bytes a piece of work allocates at its peak, above what was there.

    peak_bytes(optimizer.step, device="cpu")

On a CPU torch's profiler records every allocation and release. It does not see the release of what was allocated
before, so work should not replace old tensors: drop them first. On a GPU the allocator keeps the numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object], *, device: str) -> int:
    """The most bytes that were allocated during `work` above those at its start."""
    return _on_gpu(work) if device == "cuda" else _on_cpu(work)


def _on_cpu(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    assert record.profiler is not None
    assert record.profiler.kineto_results is not None
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    size = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        size += event.nbytes()
        most = max(most, size)
    return most


def _on_gpu(work: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - start
