"""What "auto" means: found out on a machine when `run.yaml` is written, or read from a `run.yaml` that was."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import util
from typing import Any, Literal

from mpadam.compiler import remembered_problem
from mpadam.machine import remembered_native_bf16_products
from mpadam.study.fp8_backend import resolve_backend

log = logging.getLogger(__name__)

Bf16Products = Literal["native", "float32"]


@dataclass(frozen=True)
class Auto:
    """What "auto" means where the run is to compute.

    compile: whether torch.compile works. fp8_backend: of FP8 products, None if the study has none.
    bf16_products: on the CPU, None on CUDA and where the configuration names them.
    compile_passes: True on CUDA where `compile` is or becomes true: forward and backward pass too.
    """

    compile: bool
    fp8_backend: str | None = None
    bf16_products: Bf16Products | None = None
    compile_passes: bool = False


def recorded_auto(training: Mapping[str, Any]) -> Auto:
    """What "auto" meant when the section `training` of a recorded specification was written."""
    return Auto(
        compile=training.get("compile", False),
        fp8_backend=training.get("fp8_backend"),
        bf16_products=training.get("bf16_products"),
        compile_passes=training.get("compile_passes", False),
    )


def auto_here(request: dict[str, Any]) -> Auto:
    """What "auto" means on this machine; tries its compiler and looks at its GPU only where that decides.

    Raises ValueError where it cannot be decided here: an FP8 backend for CUDA, and no GPU in sight.
    """
    training, backend = request["training"], None
    products: Bf16Products | None = None
    if request["regime"]["compute"] == "fp8" and training["fp8_backend"] == "auto":
        engine = util.find_spec("transformer_engine") is not None
        capability = gpu_capability() if training["device"] == "cuda" else None
        backend = resolve_backend("auto", device=training["device"], capability=capability, transformer_engine=engine)
    if training["device"] == "cpu" and training.get("bf16_products", "auto") == "auto":
        products = "native" if remembered_native_bf16_products() else "float32"
    compiles = training["compile"] == "auto" and _compiles(training["device"])
    passes = training["device"] == "cuda" and (compiles or training["compile"] is True)
    return Auto(compile=compiles, fp8_backend=backend, bf16_products=products, compile_passes=passes)


@cache
def _compiles(device: str) -> bool:
    """Whether torch.compile works; if not, says why, once."""
    problem = remembered_problem(device)
    if problem:
        log.warning("training.compile: auto is false: %s", problem)
    return not problem


def gpu_capability() -> tuple[int, int] | None:
    """Compute capability of this machine's GPU, None where there is none."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
