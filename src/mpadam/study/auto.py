"""What "auto" means: found out on a machine when `run.yaml` is written, or read from a `run.yaml` that was. And which
engine computes FP8 products: what `auto` and `native` mean, and when one cannot be had.

| backend            | products                        | where                                                     |
|--------------------|---------------------------------|-----------------------------------------------------------|
| transformer_engine | Transformer Engine's own layers | CUDA, compute capability 8.9 on, transformer-engine there |
| native             | torch's scaled matrix product   | CUDA, compute capability 8.9 on                           |
| emulated           | bf16 products of FP8 values     | anywhere                                                  |

A run's `run.yaml` names one of the three; training refuses to compute otherwise than it says. This module imports
neither torch nor Transformer Engine.
"""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import util
from typing import Any, Literal

from mpadam.compiler import remembered_problem
from mpadam.machine import remembered_native_bf16_products

# --- engines of FP8 products ------------------------------------------------------------------------------------------


BACKENDS = ("transformer_engine", "native", "emulated")
FP8_CAPABILITY = (8, 9)
FIELD = "fp8_backend"


def resolve_backend(
    requested: str, *, device: str, capability: tuple[int, int] | None, transformer_engine: bool
) -> str:
    """The backend that a run's specification names.

    requested: `auto` or a backend. `auto` is the first of the table that there is; `native` on a CPU is `emulated`.
    device: "cpu" or "cuda", where the run will compute.
    capability: compute capability of its GPUs, None where no GPU is in sight (a cluster's login node).
    transformer_engine: whether it is installed where the run will compute.
    Raises ValueError where `auto` cannot be decided, or the device cannot have what is asked for.
    """
    if requested not in ("auto", *BACKENDS):
        near = difflib.get_close_matches(requested, ("auto", *BACKENDS), n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{FIELD} = {requested!r}: {hint}Give auto, {', '.join(BACKENDS)}")
    if device == "cpu":
        if requested == "transformer_engine":
            raise ValueError(
                f"{FIELD} = 'transformer_engine' with device = 'cpu': it needs a GPU; write {FIELD}: emulated"
            )
        return "emulated"
    if requested != "auto":
        return requested
    if capability is None:
        raise ValueError(
            f"{FIELD} = 'auto' with device = 'cuda', but no GPU is in sight here to decide by; write which one the "
            f"run's machine has, e.g.  {FIELD}: transformer_engine  (or native)"
        )
    if capability < FP8_CAPABILITY:
        return "emulated"
    return "transformer_engine" if transformer_engine else "native"


def check_backend(
    backend: str, *, device: str, capability: tuple[int, int] | None, transformer_engine: str | None
) -> None:
    """Raise ValueError, with the remedy, if this machine cannot compute with `backend`.

    capability: of this machine's GPU, None where there is none.
    transformer_engine: None if it can be imported, else why not.
    """
    if backend == "emulated":
        return
    if device == "cpu" or capability is None:
        raise ValueError(f"{FIELD} = {backend!r} needs a CUDA device and there is none; write {FIELD}: emulated")
    if capability < FP8_CAPABILITY:
        raise ValueError(
            f"{FIELD} = {backend!r} needs a GPU of compute capability 8.9 or higher (Ada, Hopper, Blackwell), this one "
            f"has {capability[0]}.{capability[1]}; use another GPU, or write {FIELD}: emulated  (same numbers, bf16 "
            "products)"
        )
    if backend == "transformer_engine" and transformer_engine is not None:
        raise ValueError(
            f"{FIELD} = 'transformer_engine', which cannot be imported here ({transformer_engine}); install it with  "
            f"pip install '.[gpu]'  in the clone, or write {FIELD}: native"
        )


# --- what "auto" means ------------------------------------------------------------------------------------------------


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
