"""What a command inherits from the shell and must not decide what it computes, draws or prints.

`make_own()` comes before anything else in `mpadam.cli`: libraries read these variables when they are imported. What
says where something is, or how many threads there are, stays. Numbers of threads that matter are in run.yaml. So do the
variables by which torch and its libraries take this processor for an older one: a run has the bits of that processor
then, and `environment.json` names them.
"""

import io
import os
import sys
import warnings

#: of processors, matrix libraries and compilers: each can change the last bits of a run, or what is compiled
ARITHMETIC = (
    *("AOT_INDUCTOR_", "CUBLAS_", "CUBLASLT_", "DNNL_", "FLASH_ATTENTION_", "LIGER_", "MKL_", "NPY_", "NVTE_"),
    *("NVIDIA_TF32_OVERRIDE", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_THREAD_LIMIT", "ONEDNN_", "OPENBLAS_"),
    *("TORCH_ALLOW_TF32", "TORCH_BLAS_", "TORCH_COMPILE_", "TORCH_DYNAMO_", "TORCH_FORCE_", "TORCH_LINALG_"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
)
#: the newest instructions that torch and its libraries use: these stay
INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
#: where and how figures are drawn, and which framework transformers uses
OTHERS = ("MATPLOTLIBRC", "MPLBACKEND", "USE_FLAX", "USE_JAX", "USE_TF", "USE_TORCH")
PLACES = ("_DIR", "_HOME", "_PATH", "_ROOT", "_THREADS")  # ends of names that stay


def make_own() -> None:
    """Take out of this process, and of those it starts, what is inherited and must not decide."""
    for name in list(os.environ):
        if name.startswith((*ARITHMETIC, *OTHERS)) and not name.endswith((*INSTRUCTIONS, *PLACES)):
            del os.environ[name]
    os.environ["MPLBACKEND"] = "agg"
    _without_flags()
    if os.environ.pop("PYTHONWARNINGS", ""):
        _default_warnings()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale that lacks a letter ends no command


def _without_flags() -> None:
    """Start this process again where it has an inherited flag of Python's: without docstrings transformers cannot be
    imported, without assertions nothing guards the invariants, and with `inspect` a command ends at a prompt."""
    found = [f"PYTHON{flag.upper()}" for flag in ("optimize", "inspect") if getattr(sys.flags, flag)]
    if [name for name in found if os.environ.pop(name, "")]:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _default_warnings() -> None:
    """The filters that Python starts with; an inherited `error` would make a library's warning the end."""
    warnings.resetwarnings()
    for category in (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning):
        warnings.simplefilter("ignore", category)
