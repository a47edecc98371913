"""What training asks of the machine and sets in the process: device, compiler, threads, determinism, allocator."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mpadam.compiler import compile_problem
from mpadam.machine import native_bf16_products
from mpadam.study.spec import RunSpec, numerics_version
from mpadam.study.streams import stream_seed

#: variables by which a GPU's libraries compute deterministically; `environment.json` names those that are set
DETERMINISM = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS needs a fixed workspace
    "FLASH_ATTENTION_DETERMINISTIC": "1",  # Transformers reads it at each call, for FlashAttention's backward pass
}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEEP_BYTES = 2**30


def configure(spec: RunSpec) -> None:
    """Make this process compute exactly what the specification says.

    Raises ValueError where it cannot: run.yaml of another numerics version, no such device, no working compiler.
    """
    import torch

    _check(spec)
    if spec.training.device == "cuda":
        os.environ.update(DETERMINISM)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.set_num_threads(spec.training.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(stream_seed(spec.seed, "global"))  # no number of a run depends on the global generators
    _keep_freed_memory()


def _check(spec: RunSpec) -> None:
    from mpadam.model.capabilities import require

    version = numerics_version(spec.regime.masters, spec.optimizer.name)
    if spec.numerics_version != version:
        raise ValueError(
            f"numerics_version: run.yaml was written for {spec.numerics_version}, this program computes "
            f"{version}; write run.yaml again (mpadam spec), or use the program it was written by"
        )
    require(
        attention=spec.model.attention,
        liger=spec.model.liger,
        backend=spec.training.fp8_backend,
        device=spec.training.device,
    )
    if spec.training.bf16_products == "native" and not native_bf16_products():
        raise ValueError(
            "training.bf16_products: run.yaml says native, but this processor has no instructions for products of bf16 "
            "matrices; train it on the kind of processor that it was begun on, or write  bf16_products: float32  into "
            "the section training of the configuration and start the workflow again, which makes it another run"
        )
    compiles = spec.training.compile or spec.training.compile_passes
    if compiles and (problem := compile_problem(spec.training.device)):
        raise ValueError(f"training.compile: run.yaml says true, but {problem}; or write  compile: false")


def _keep_freed_memory() -> None:
    """Let glibc keep freed blocks: activations of a step are then not new, empty pages each time.

    A quarter of the time of a small training on a CPU. Other C libraries go on as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import much code without looking for garbage in it, then or later: a third of the time to start.

    Only what the first imports made is set aside; what a run leaves behind is collected as ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            gc.freeze()
        if enabled:
            gc.enable()
