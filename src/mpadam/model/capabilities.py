"""What this machine can do: hardware, optional packages, and which regimes run natively on it.

    machine = probe()                       what there is
    require(attention=..., liger=...,       ValueError, before training starts, if something is asked for that is not
            backend=..., device=...)
    regime_support(machine)                 each regime: native, emulated, or not at all

A regime is masters x compute (docs/algorithm.md, "Where"). Masters in fp32 and bf16 are what they are on any machine.
Masters in FP8 and NVFP4 are *storage* on every machine: decoded to bf16 before each product. Products are bf16 or FP8.
NVFP4 products need compute capability 10.0 (Blackwell, sm_100), and no regime of the study asks for them.
"""

import importlib
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from types import MappingProxyType
from typing import Any

import torch

from mpadam.machine import cpu_name, gpu, installed, native_bf16_products
from mpadam.numerics.formats import BY_MASTERS
from mpadam.study.auto import check_backend, resolve_backend

PACKAGES = MappingProxyType(
    {
        "transformer_engine": "transformer-engine",
        "flash_attn": "flash-attn",
        "liger_kernel": "liger-kernel",
        "triton": "triton",
        "wandb": "wandb",
    }
)
TOOLS = ("g++", "clang++", "nvcc", "apptainer", "sbatch")
ATTENTION = ("sdpa", "flash_attention_2", "eager")
COMPUTE = ("bf16", "fp8")
BF16_CAPABILITY = FLASH_CAPABILITY = (8, 0)
NVFP4_NOTE = (
    "NVFP4 products need compute capability 10.0 (sm_100, Blackwell) and are part of no regime: NVFP4 masters are "
    "storage, decoded to bf16 before each product, on every machine."
)


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    memory_gib: float


@dataclass(frozen=True)
class Machine:
    """packages: import name -> version, None where it is not installed. tools: command -> path, None if not found."""

    python: str
    platform: str
    torch: str
    cuda: str | None
    cpu: str
    cpu_threads: int
    cpu_bf16: bool
    gpus: tuple[Gpu, ...]
    packages: dict[str, str | None]
    tools: dict[str, str | None]

    @property
    def capability(self) -> tuple[int, int] | None:
        """The lowest compute capability of the GPUs: what all ranks of a run can do."""
        return min((gpu.capability for gpu in self.gpus), default=None)


@dataclass(frozen=True)
class Support:
    """How a regime runs: products `native`, `through float32`, `emulated` or `not at all`, masters `native` or
    `storage only`.

    bytes_per_parameter: of the stored weight of a projection, scales included.
    backend: that computes FP8 products, None where there are none.
    """

    regime: str
    device: str
    masters: str
    products: str
    bytes_per_parameter: float
    backend: str | None


def probe() -> Machine:
    """Look at this machine; imports none of the optional packages."""
    gpus = [gpu(index) for index in range(torch.cuda.device_count())]
    return Machine(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cpu=cpu_name() or "unknown",
        cpu_threads=torch.get_num_threads(),
        cpu_bf16=native_bf16_products(),
        gpus=tuple(Gpu(g["name"], g["capability"], round(g["memory_bytes"] / 2**30, 1)) for g in gpus),
        packages={name: _version(name, distribution) for name, distribution in PACKAGES.items()},
        tools={name: shutil.which(name) for name in TOOLS},
    )


def _version(name: str, distribution: str) -> str | None:
    return installed(distribution) or ("of unknown version" if util.find_spec(name) else None)


# --- regimes ---------------------------------------------------------------------------------------------------------


def regime_support(machine: Machine) -> list[Support]:
    """Every regime on the CPU, and on the GPU (the weakest, where there are several)."""
    return [
        _support(machine, masters, compute, device)
        for masters in BY_MASTERS
        for compute in COMPUTE
        for device in ("cpu", "cuda")
    ]


def _support(machine: Machine, masters: str, compute: str, device: str) -> Support:
    fmt = BY_MASTERS[masters].build()
    products, backend = _products(machine, compute, device)
    return Support(
        regime=f"{masters}-{compute}",
        device=device,
        masters="native" if fmt.dtype is not None else "storage only",
        products=products,
        bytes_per_parameter=round(fmt.encode(torch.zeros(256, 256)).nbytes / 256**2, 4),
        backend=backend,
    )


def _products(machine: Machine, compute: str, device: str) -> tuple[str, str | None]:
    if device == "cuda" and machine.capability is None:
        return "not at all", None
    if compute == "fp8":
        installed = machine.packages["transformer_engine"] is not None
        backend = resolve_backend("auto", device=device, capability=machine.capability, transformer_engine=installed)
        return ("emulated" if backend == "emulated" else "native"), backend
    if device == "cpu":
        return ("native" if machine.cpu_bf16 else "through float32"), None
    return ("native" if (machine.capability or (0, 0)) >= BF16_CAPABILITY else "emulated"), None


# --- what a run asks for ---------------------------------------------------------------------------------------------


def require(
    *,
    attention: str = "sdpa",
    liger: bool = False,
    backend: str | None = None,
    device: str = "cpu",
    machine: Machine | None = None,
) -> None:
    """Raise one ValueError that lists all that a run asks for and this machine lacks, each with its remedy.

    attention: sdpa, flash_attention_2 or eager. liger: Liger's fused kernels.
    backend: of FP8 products, as run.yaml names it; None for a run without. device: "cpu" or "cuda".
    machine: default: this one. Packages that are asked for are imported, since they may be installed and yet broken.
    """
    problems = list(_problems(attention, liger, backend, device, machine or probe()))
    if problems:
        raise ValueError("this machine cannot run what run.yaml asks for: " + "; ".join(problems))


def _problems(attention: str, liger: bool, backend: str | None, device: str, machine: Machine) -> Iterator[str]:
    if device == "cuda" and machine.capability is None:
        yield "device = 'cuda', but there is no CUDA device; write  device: cpu"
        return
    if attention not in ATTENTION:
        yield f"attention = {attention!r}: give one of {', '.join(ATTENTION)}"
    if attention == "flash_attention_2":
        yield from _kernel_problems("attention = 'flash_attention_2'", "flash_attn", "attention: sdpa", device, machine)
    if liger:
        yield from _kernel_problems("liger = true", "liger_kernel", "liger: false", device, machine)
    if backend is not None:
        try:
            problem = import_problem("transformer_engine.pytorch") if backend == "transformer_engine" else None
            check_backend(backend, device=device, capability=machine.capability, transformer_engine=problem)
        except ValueError as error:
            yield str(error)


def _kernel_problems(asked: str, package: str, instead: str, device: str, machine: Machine) -> Iterator[str]:
    """Both kernel packages need a GPU of compute capability 8.0 on, and to be importable."""
    if device == "cpu" or machine.capability is None:
        yield f"{asked} needs a CUDA device; write  {instead}"
    elif machine.capability < FLASH_CAPABILITY:
        have = ".".join(map(str, machine.capability))
        yield f"{asked} needs a GPU of compute capability 8.0 or higher, this one has {have}; write  {instead}"
    elif (problem := import_problem(package)) is not None:
        yield (
            f"{asked}, but {package} cannot be imported ({problem}); install it with  "
            f"pip install {PACKAGES[package]}  or write  {instead}"
        )


def import_problem(package: str) -> str | None:
    """Why a package cannot be imported; None if it can."""
    try:
        importlib.import_module(package)
    except (ImportError, OSError, RuntimeError) as error:  # they load CUDA libraries on import
        return f"{type(error).__name__}: {error}"
    return None


def as_dict(machine: Machine) -> dict[str, Any]:
    return {
        **{key: value for key, value in vars(machine).items() if key != "gpus"},
        "gpus": [vars(gpu) for gpu in machine.gpus],
        "regimes": [vars(support) for support in regime_support(machine)],
        "note": NVFP4_NOTE,
    }
