"""A compiled function as a GPU would run it: its Triton kernels, written for an H100, in Triton's interpreter.

    start()                            once, in a process of its own that has TRITON_INTERPRET=1
    launches = launched(step, on_gpu)  runs `step`, which calls what is compiled; on_gpu: tensors taken for CUDA ones
    python -m tests.lowering.interpreted FOLDER CASE...     the optimizer steps of `cases`, compared with eager ones

The last writes FOLDER/CASE.json, and every kernel's source to FOLDER/CASE/. The interpreter rounds divisions and roots
correctly and joins no product with a sum. A GPU does otherwise where PTX asks for it (`assembled` counts that).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from pretended import pretend_h100, take_for_cuda
from torch import Tensor
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.hints import TRITON_MAX_BLOCK
from triton.runtime import interpreter

from mpadam import MPlusAdam
from mpadam.optim import base, compiled, slots
from tests.lowering.cases import CASES, Case

_STEPS = 2
_AT_ONCE = 2**16
"""Numbers that a program of the interpreter works on: it takes as long for one as for thousands."""
_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Launch:
    """bytes: of all tensors that the kernel is given, twice of those that it reads and writes."""

    kernel: str
    source: str
    bytes: int


_LAUNCHES: list[Launch] = []


class _Kernel:
    """Runs inductor's kernel, notes the launch, and gives numbers the types of its signature."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source
        self.tuner = getattr(PyCodeCache.load(source), name)

    def run(self, *args: Any, stream: object = None) -> None:
        signature, blocks = self.tuner.triton_meta["signature"], self.tuner.configs[0].kwargs
        given = dict(zip((name for name in signature if name not in blocks), args, strict=True))
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        sizes = [t.numel() * t.element_size() * (1 + name.startswith("in_out")) for name, t in tensors.items()]
        _LAUNCHES.append(Launch(self.name, self.source, sum(sizes)))
        self._enlarge(given["xnumel"])
        self.tuner.run(*(_typed(value, signature[name]) for name, value in given.items()), stream=stream)

    def _enlarge(self, count: int) -> None:
        """Let one program do the work of many; it looks at no bounds where the largest block that inductor knows fits
        in a whole number of times."""
        blocks = self.tuner.configs[0].kwargs
        if set(blocks) == {"XBLOCK"} and not self.tuner.inductor_meta["no_x_dim"]:
            room = _AT_ONCE // self.tuner.size_hints.get("r0_", 1)  # with a reduction that is held whole
            blocks["XBLOCK"] = math.gcd(count, room) if count % TRITON_MAX_BLOCK["X"] == 0 else room


def _typed(value: Any, kind: str) -> Any:
    """The interpreter takes a number for the smallest type that holds it."""
    if kind.startswith("*"):
        return value
    types = {"fp64": (np.float64, tl.float64), "fp32": (np.float32, tl.float32), "i64": (np.int64, tl.int64)}
    if kind not in types:
        return value
    dtype, ty = types[kind]
    return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=dtype), ty), ty)


def start() -> None:
    """See the module."""
    pretend_h100()
    config.force_disable_caches = True
    AsyncCompile.triton = lambda self, name, source, device_str="cuda": _Kernel(name, source)  # type: ignore
    interpreter._convert_float = _convert_float
    triton_helpers.libdevice = SimpleNamespace(
        nearbyint=_elementwise(np.rint),
        floor=_elementwise(np.floor),
        copysign=_elementwise(np.copysign),
        exp=_elementwise(_in_double(np.exp)),
        log=_elementwise(_in_double(np.log)),
        rsqrt=_elementwise(_in_double(lambda x: 1 / np.sqrt(x))),
    )
    triton_helpers.max2, triton_helpers.any = _reduced(np.max), _reduced(np.any)


def _convert_float(values: Any, source: Any, target: Any, rounding: object) -> Any:
    """To nearest, as a GPU casts; the interpreter's own conversion cuts digits off."""
    flat = torch.from_numpy(np.ascontiguousarray(values).reshape(-1).view(f"u{source.primitive_bitwidth // 8}"))
    size = target.primitive_bitwidth // 8
    cast = flat.view(_DTYPES[source.name]).to(_DTYPES[target.name]).view(_INTEGERS[size])
    return cast.numpy().view(f"u{size}").reshape(np.shape(values))


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """What Triton has of NVIDIA's library only, and the interpreter not at all."""

    def of(x: Any, *others: Any) -> Any:
        data = function(x.handle.data, *(other.handle.data for other in others))
        return tl.tensor(interpreter.TensorHandle(data, x.handle.dtype), x.type)

    return of


def _in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the interpreter would do number by number, in Python. Like a kernel's, a maximum is NaN where one is."""

    def of(x: Any, dim: int) -> Any:
        data = function(x.handle.data, axis=dim)
        return tl.tensor(interpreter.TensorHandle(data, x.handle.dtype), tl.block_type(x.dtype, list(data.shape)))

    return of


def launched(step: Callable[[], object], on_gpu: Iterable[Tensor]) -> list[Launch]:
    """See the module."""
    take_for_cuda(on_gpu)
    _LAUNCHES.clear()
    step()
    return list(_LAUNCHES)


# -- the optimizer's step ---------------------------------------------------------------------------------------------


def _compiled_for_cuda() -> None:
    """Steps on tensors of the CPU take the ways that those of a GPU take."""
    real, numbers = compiled._compiled, slots.scalars
    compiled._compiled = lambda plan, layout, any_length, _: real(plan, layout, any_length, "cuda")  # type: ignore
    slots.scalars = lambda constants, rates, _: numbers(constants, rates, "cuda")
    base.can_compile = lambda _: True  # type: ignore


def _built(case: Case, *, compile: bool) -> tuple[Tensor, MPlusAdam]:
    generator = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter((torch.randn(case.shape, generator=generator) * 0.02).bfloat16())
    dtype = "fp32" if case.weight_format == "fp32" else "bf16"
    options = {"weight_format": case.weight_format, "write_back": case.write_back, "state_dtype": dtype}
    return p, MPlusAdam([p], **options, compile=compile)


def _give_gradient(p: Tensor, t: int) -> None:
    p.grad = (torch.randn(p.shape, generator=torch.Generator().manual_seed(t)) * 1e-3).bfloat16()


def _tensors(p: Tensor, optimizer: MPlusAdam) -> dict[str, Tensor]:
    kept = {name: value for name, value in optimizer.state[p].items() if isinstance(value, Tensor)}
    return {"parameter": p.detach(), **kept}


@contextmanager
def _correct_roots() -> Iterator[None]:
    """A CPU's root of a float32 is MKL's, which at times is off by one in the last place; `sqrt_rn` of a GPU is not."""
    real = Tensor.sqrt
    Tensor.sqrt = lambda x: real(x.double()).to(x.dtype)  # type: ignore
    yield
    Tensor.sqrt = real  # type: ignore[method-assign]


def _different(eager: Tensor, mine: Tensor) -> int:
    """How many numbers differ."""
    assert eager.dtype is mine.dtype
    assert not eager.is_floating_point() or bool(eager.isfinite().all())
    return int((eager != mine).sum())


def _look_at(name: str, folder: Path) -> None:
    torch._dynamo.reset()
    case = CASES[name]
    (p, optimizer), (q, eager) = _built(case, compile=True), _built(case, compile=False)
    for t in range(_STEPS):
        _give_gradient(p, t)
        _give_gradient(q, t)
        assert p.grad is not None
        launches = launched(optimizer.step, [*_tensors(p, optimizer).values(), p.grad])
        with _correct_roots():
            eager.step()
    (folder / name).mkdir()
    for launch in launches:
        (folder / name / f"{launch.kernel}.py").write_text(launch.source)
    theirs = _tensors(q, eager)
    result = {
        "kernels": len(launches),
        "bytes": sum(launch.bytes for launch in launches) / p.numel(),
        "differences": {key: _different(theirs[key], value) for key, value in _tensors(p, optimizer).items()},
    }
    (folder / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    start()
    _compiled_for_cuda()
    for case_name in sys.argv[2:]:
        _look_at(case_name, Path(sys.argv[1]))
