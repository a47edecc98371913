"""An H100 that torch and Triton believe in: enough for torch.compile to write its kernels, nothing for running them.

    pretend_h100()         for the rest of this process, which needs Triton (its wheel alone will do) and g++
    take_for_cuda(some)    tensors of the CPU that a compiler is told are on the GPU, and no others

Whatever a graph then makes on the GPU is made on the CPU. It changes torch for good: only for a process of its own.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.runtime import triton_helpers
from torch._subclasses import fake_tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

_TAKEN_FOR_CUDA: set[int] = set()  # by `data_ptr`
DEVICE = torch.device("cuda:0")
_LIBRARY = torch.library.Library("aten", "IMPL")
_H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 * 2**30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20,
    is_integrated=0,
    is_multi_gpu_board=0,
    gcnArchName="",
)
_ANSWERS = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "device_count": 1,
    "current_device": 0,
    "get_device_properties": _H100,
    "get_device_capability": (9, 0),
    "get_device_name": _H100.name,
    "set_device": None,
    "synchronize": None,
    "exchange_device": 0,
    "maybe_exchange_device": 0,
    "_exchange_device": 0,
    "_maybe_exchange_device": 0,
    "_lazy_init": None,
}
_TO_DYNAMO = {"get_compute_capability": 90, "is_triton_capable": True, "raise_if_triton_unavailable": None}
_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
using Nothing = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>;
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, Nothing) }
"""


class _Guard:
    def __init__(self, device: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class _Driver:
    """What inductor and Triton ask of a driver to compile for it."""

    is_active = get_current_stream = staticmethod(lambda *_: 0)
    get_current_device = set_current_device = staticmethod(lambda *_: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_device_interface = staticmethod(lambda: torch.cuda)


def pretend_h100() -> None:
    """See the module."""
    _load_guard()
    for name, value in _ANSWERS.items():
        setattr(torch.cuda, name, _always(value))
        if hasattr(CudaInterface, name):
            setattr(CudaInterface, name, staticmethod(_always(value)))
        if hasattr(CudaInterface.Worker, name):
            setattr(CudaInterface.Worker, name, staticmethod(_always(value)))
    for name, value in _TO_DYNAMO.items():
        setattr(CudaInterface, name, staticmethod(_always(value)))
    torch.cuda.device = torch.cuda._DeviceGuard = _Guard  # type: ignore[misc, assignment]
    torch.version.cuda = "13.0"
    for name in ("_cuda_getDevice", "_cuda_getCurrentRawStream", "_cuda_isCurrentStreamCapturing"):
        setattr(torch._C, name, _always(0))
    for name, function in {"get_rng_state": lambda *_: torch.get_rng_state(), "set_rng_state": _always(None)}.items():
        setattr(torch.cuda, name, function)
        setattr(torch.cuda.random, name, function)
    driver._active = driver._default = _Driver()
    triton_helpers.set_driver_to_gpu = _always(None)
    # Patterns of attention and matrix products, which are traced on the device.
    joint_graph.lazy_init = post_grad.lazy_init = _always(None)
    _patch_fake_tensors()
    _make_on_cpu()


def take_for_cuda(tensors: Iterable[Tensor]) -> None:
    """See the module."""
    _TAKEN_FOR_CUDA.clear()
    _TAKEN_FOR_CUDA.update(t.data_ptr() for t in tensors)


def _always(value: object) -> Callable[..., Any]:
    return lambda *args, **options: value


def _load_guard() -> None:
    """torch's CPU build refuses even fake tensors of CUDA where a method looks after the current device."""
    there = Path(torch.__file__).parent
    places = (f"-I{there / 'include'}", f"-L{there / 'lib'}")
    with tempfile.TemporaryDirectory(prefix="mpadam-guard-") as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(_GUARD, encoding="utf-8")
        subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", *places, source, "-lc10", "-o", library], check=True)
        ctypes.CDLL(str(library))


def _patch_fake_tensors() -> None:
    real = fake_tensor.FakeTensorConverter.from_real_tensor

    def from_real_tensor(self: Any, mode: Any, t: Tensor, *args: Any, **options: Any) -> Any:
        fake = real(self, mode, t, *args, **options)
        if t.data_ptr() in _TAKEN_FOR_CUDA:
            fake.fake_device = DEVICE
        return fake

    fake_tensor.FakeTensorConverter.from_real_tensor = from_real_tensor  # type: ignore[method-assign, assignment]
    fake_tensor.init_gpu_context = _always(None)  # type: ignore[assignment]


def _make_on_cpu() -> None:
    def strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    def dense(size: Any, dtype: Any = None, **_: Any) -> Tensor:
        return torch.empty(size, dtype=dtype, device="cpu")

    _LIBRARY.impl("empty_strided", strided, "CUDA")
    _LIBRARY.impl("empty.memory_format", dense, "CUDA")
    torch._C._dynamo.guards._empty_strided_cuda = strided  # type: ignore[attr-defined]
