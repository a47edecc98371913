"""FP8 products of the backends against each other on the projections of LLaMAs, and their saved state.

Transformer Engine keeps all models of a process in one global buffer: each comparison has a process of its own, and in
it one model is done with before the next is built.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gpu.parts import Case, NotHereError, Row, Setting, apart, need
from mpadam.model.fp8.control import fp8_state_dict, fp8_step, load_fp8_state_dict
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.numerics import saturating_cast

FLOORS = {"output": 18.0, "input gradient": 17.0, "weight gradient": 17.0}
"""Signal to quantisation noise, in dB, below which two backends do not compute the same."""
SCALES = (1.0, 0.3, 737.1, 2.0**40)
WARM_UP = 3
COMPARED = {"native": ("emulated",), "transformer_engine": ("emulated", "native")}

Results = tuple[Tensor, Tensor, Tensor]


def product_cases(setting: Setting) -> Iterator[Case]:
    """Each backend on each shape."""
    for size, projection, shape in shapes(setting):
        for backend in COMPARED:
            name = f"{size} {projection}, {backend}"
            yield Case(name, partial(apart, compare, name, backend, shape, setting))


def cast_cases(setting: Setting) -> Iterator[Case]:
    """Casts, and the saved state of each backend."""
    yield Case("casts", partial(apart, check_casts, setting.device))
    for backend in COMPARED:
        yield Case(f"saved state, {backend}", partial(check_state, backend, setting))


def shapes(setting: Setting) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Size, projection, and columns of its input and output."""
    for name, size in setting.sizes.items():
        h, f = size.hidden_size, size.intermediate_size
        for projection, k, n in (("q, k, v, o", h, h), ("gate, up", h, f), ("down", f, h)):
            yield name, projection, (k, n)


def check_casts(device: str) -> list[Row]:
    """Every bf16 value, at some scales, is cast to the value of the CPU."""
    need(device=device)
    values = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    rows = []
    for fmt in ("e4m3", "e5m2"):
        differing = 0
        for scale in SCALES:
            here = saturating_cast(values * scale, fmt).float()
            there = saturating_cast(values.to(device) * scale, fmt).cpu().float()
            differing += int(((here != there) & ~(here.isnan() & there.isnan())).sum())
        fault = f"{differing} casts differ from the CPU's" if differing else ""
        rows.append(Row(f"casts to {fmt}", {"values": len(SCALES) * len(values)}, fault))
    return rows


def compare(name: str, backend: str, shape: tuple[int, int], setting: Setting) -> list[Row]:
    """`backend` against the other backends on one shape, and the time of a forward and backward pass."""
    _need_backend(backend, setting.device)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # sums in float32, as in training
    operands = _operands(shape, setting)
    others = [other for other in COMPARED[backend] if _usable(other, setting.device)]
    results, times = {}, {}
    for each in (backend, *others, "bf16"):
        model, x = layer(each, operands[1]), operands[0].clone().requires_grad_()
        for _ in range(WARM_UP):  # after the first step, FP8 has scales
            results[each] = one_pass(model, x, operands[2])
        times[each] = milliseconds(partial(one_pass, model, x, operands[2]), setting)
    rows = []
    for other in others:
        ratios = {k: sqnr(a, b) for k, a, b in zip(FLOORS, results[backend], results[other], strict=True)}
        fault = "; ".join(f"{key} at {ratio:.1f} dB" for key, ratio in ratios.items() if not ratio > FLOORS[key])
        values: dict[str, Any] = {
            "against": other,
            "tokens x in x out": f"{setting.positions} x {shape[0]} x {shape[1]}",
        }
        values |= {f"{key}, dB": round(ratio, 1) for key, ratio in ratios.items()}
        values |= {"ms": times[backend], "ms of the other": times[other], "ms in bf16": times["bf16"]}
        rows.append(Row(name, values, fault))
    return rows


def _need_backend(backend: str, device: str) -> None:
    """On a CPU `native` is torch's own implementation of the same function."""
    need(device=device, backend=None if device == "cpu" and backend != "transformer_engine" else backend)


def _usable(backend: str, device: str) -> bool:
    try:
        _need_backend(backend, device)
    except NotHereError:
        return False
    return True


def _operands(shape: tuple[int, int], setting: Setting) -> Results:
    """Input, weight and output gradient."""
    k, n = shape
    draw = partial(torch.randn, generator=torch.Generator(setting.device).manual_seed(k * n), device=setting.device)
    rows = setting.positions
    return draw(rows, k).bfloat16(), (draw(n, k) * 0.02).bfloat16(), (draw(rows, n) * 1e-5).bfloat16()


def layer(backend: str, weight: Tensor) -> nn.Sequential:
    """A model of one projection."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.clone())
    model = nn.Sequential(OrderedDict(up_proj=linear))
    return model if backend == "bf16" else convert_to_fp8(model, backend=backend)


def one_pass(model: nn.Sequential, x: Tensor, dy: Tensor) -> Results:
    """Output, input gradient and weight gradient of a forward and backward pass."""
    (weight,) = model.parameters()
    x.grad = weight.grad = None
    with fp8_step(model):
        y = model(x)
        y.backward(dy)
    assert x.grad is not None
    assert weight.grad is not None
    return y.detach(), x.grad, weight.grad


def sqnr(result: Tensor, reference: Tensor) -> float:
    """Signal to noise in dB; `inf` where they are equal."""
    noise = float((result.float() - reference.float()).square().sum(dtype=torch.float64))
    signal = float(reference.float().square().sum(dtype=torch.float64))
    return 10 * math.log10(signal / noise) if noise and signal else (-math.inf if noise else math.inf)


def milliseconds(step: Callable[[], object], setting: Setting) -> float:
    """Of one call, on average."""
    wait = torch.cuda.synchronize if setting.device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(setting.repeats):
        step()
    wait()
    return (time.perf_counter() - start) / setting.repeats * 1e3


# --- saved state -----------------------------------------------------------------------------------------------------


def check_state(backend: str, setting: Setting) -> list[Row]:
    """A layer's state, saved and loaded in another process, goes on with equal bits."""
    file = setting.folder / f"{backend}.pt"
    expected = apart(save_and_go_on, backend, setting, file)
    found = apart(load_and_go_on, backend, setting, file)
    fault = "" if found == expected else "continues with other bits after it was loaded"
    return [Row(f"saved state, {backend}", {"loaded with": "weights_only=True"}, fault)]


def save_and_go_on(backend: str, setting: Setting, file: Path) -> str:
    _need_backend(backend, setting.device)
    operands = _operands(_awkward(setting), setting)
    model = layer(backend, operands[1])
    for t in range(WARM_UP):
        _moving_pass(model, operands, t)
    torch.save(fp8_state_dict(model), file)
    return _going_on(model, operands)


def load_and_go_on(backend: str, setting: Setting, file: Path) -> str:
    operands = _operands(_awkward(setting), setting)
    model = layer(backend, operands[1])
    load_fp8_state_dict(model, torch.load(file, weights_only=True))
    return _going_on(model, operands)


def _awkward(setting: Setting) -> tuple[int, int]:
    """The shape whose output is filled up with the most columns."""
    return max((shape for _, _, shape in shapes(setting)), key=lambda shape: -shape[1] % 16)


def _going_on(model: nn.Sequential, operands: Results) -> str:
    return digest([_moving_pass(model, operands, t) for t in (WARM_UP, WARM_UP + 1)] + [fp8_state_dict(model)])


def _moving_pass(model: nn.Sequential, operands: Results, t: int) -> Results:
    """A pass whose magnitudes differ from those of the others, so that scales move."""
    return one_pass(model, (operands[0] * 1.7**t).detach().requires_grad_(), operands[2] * 0.6**t)


def digest(tree: Any) -> str:
    """SHA-256 of all tensors in nested lists and dictionaries."""
    hashed = hashlib.sha256()
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            hashed.update(leaf.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        else:
            hashed.update(repr(leaf).encode())
    return hashed.hexdigest()
