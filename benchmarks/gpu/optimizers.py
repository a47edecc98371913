"""Compiled optimizer steps against eager ones, in units in the last place, and the bytes per second that they move."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from paper_set import PaperSet, step_bytes
from torch import Tensor

from gpu.parts import Case, NotHereError, Row, Setting, apart, need
from mpadam.compiler import compile_problem
from mpadam.measure.step_time import Subject, time_subjects
from mpadam.optim.base import LowPrecisionOptimizer

STEPS = 3
MOST_ULPS = {torch.float32: 32}
"""Of a stored weight, between compiled and eager steps; where it was rounded, 1. Compiled for a GPU, divisions are off
by up to 2 units, and a float32 weight shows it: three times a chain of three in each branch. On a CPU there is no
difference."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def cases(setting: Setting) -> Iterator[Case]:
    """M+Adam with weights kept in each way."""
    for masters in setting.masters:
        yield Case(f"m-plus-adam, {masters}", partial(apart, compare, masters, setting))


def compare(masters: str, setting: Setting) -> list[Row]:
    """Some steps of a compiled and an eager optimizer from the same weights, then the time of one."""
    need(device=setting.device)
    if problem := compile_problem(setting.device):
        raise NotHereError(problem)
    weights = PaperSet(setting.sizes[setting.trained], setting.vocabulary, setting.device)
    compiled, eager = (weights.optimizer("m-plus-adam", masters, compile=on) for on in (True, False))
    before = [eager.store_of(p).read() for p in _parameters(eager)]
    for _ in range(STEPS):
        compiled.step()
        eager.step()
    values, share = _differences(compiled, eager, before)
    subjects = [Subject(name, masters, of.step) for name, of in (("compiled", compiled), ("eager", eager))]
    fast, slow = time_subjects(subjects, warmup=1, rounds=setting.repeats, steps=1, device=setting.device)
    fast_seconds, slow_seconds = (statistics.median(timing.samples) for timing in (fast, slow))
    rate = step_bytes(compiled) / fast_seconds / 1e9
    values |= {"compiled ms": 1e3 * fast_seconds, "eager ms": 1e3 * slow_seconds, "compiled GB/s": rate}
    largest = values["weights, largest ulp"]
    fault = f"weights are up to {largest:.0f} ulp from those of eager steps" if share > 1 else ""
    return [Row(f"m-plus-adam, {masters}", values, fault)]


def _differences(
    compiled: LowPrecisionOptimizer, eager: LowPrecisionOptimizer, before: list[Tensor]
) -> tuple[dict[str, float], float]:
    """Of weights and of states: how many numbers differ, and by how many ulps at most; of weights the largest share of
    what they may differ by.

    before: the weights that the steps began from, float32. A weight smaller than its step has the step's errors, so
        ulps of plain weights are those of |weight| + |step|.
    """
    counts, most, share = {"weights": 0, "states": 0}, {"weights": 0.0, "states": 0.0}, 0.0
    for p, q, w in zip(_parameters(compiled), _parameters(eager), before, strict=True):
        stored = compiled.store_of(p).tensors.keys()
        pairs = [("weights", "", p.detach(), q.detach())]
        for name, tensor in compiled.state[p].items():
            if isinstance(tensor, Tensor) and tensor.element_size() in _INTEGERS:
                pairs.append(("weights" if name in stored else "states", name, tensor, eager.state[q][name]))
        for kind, name, a, b in pairs:
            if kind == "weights" and a.is_floating_point() and a.element_size() > 1 and a.shape == w.shape:
                ulps = in_last_places(a, b, w.abs() + (b.float() - w).abs())
            else:
                ulps = distance(a, b, nibbles=name == "weight.codes" and a.numel() < p.numel())
            largest = float(ulps.max()) if ulps.numel() else 0.0
            counts[kind] += int((ulps != 0).sum())
            most[kind] = max(most[kind], largest)
            if kind == "weights":
                share = max(share, largest / MOST_ULPS.get(a.dtype, 1))
    values: dict[str, float] = {}
    for kind, number in counts.items():
        values |= {f"{kind} that differ": number, f"{kind}, largest ulp": most[kind]}
    return values, share


def _parameters(optimizer: LowPrecisionOptimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def in_last_places(a: Tensor, b: Tensor, size: Tensor) -> Tensor:
    """How far apart plain numbers are, in units in the last place of numbers of this size."""
    _, exponent = torch.frexp(size.double())
    unit = torch.ldexp(torch.full_like(size, torch.finfo(a.dtype).eps / 2, dtype=torch.float64), exponent)
    return (a.double() - b.double()).abs() / unit


def distance(a: Tensor, b: Tensor, *, nibbles: bool = False) -> Tensor:
    """Units in the last place between the numbers of two tensors: floating-point numbers, or codes of any such format.

    nibbles: two codes in each byte.
    """
    if nibbles:
        low, high = (_in_order(a & 15, 4) - _in_order(b & 15, 4), _in_order(a >> 4, 4) - _in_order(b >> 4, 4))
        return torch.stack([low, high]).abs()
    bits = 8 * a.element_size()
    integers = _INTEGERS[a.element_size()]
    return (_in_order(a.contiguous().view(integers), bits) - _in_order(b.contiguous().view(integers), bits)).abs()


def _in_order(codes: Tensor, bits: int) -> Tensor:
    """Sign and magnitude of `bits` bits as integers that grow with the number."""
    wide = codes.to(torch.int64)
    magnitude = wide & (2 ** (bits - 1) - 1)
    return torch.where((wide & 2 ** (bits - 1)) != 0, -magnitude, magnitude)
