"""Whether torch.compile works here: it is tried, since a compiler that is there may lack headers or a place to write.

    compile_problem("cpu")        tries it: "" or, in one line, why not
    remembered_problem("cpu")     the same without torch where it has worked on this machine and environment before

That it works is remembered with what it depends on: interpreter, torch, compiler, headers, and the folder of compiled
code. A failure is not, since the compiler may have been killed, or the disk full. Only `run.yaml` is written by what is
remembered; a training tries again.
"""

import os
import shutil
import socket
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mpadam.machine import remembered

REMEDY = (
    "install g++ and Python's headers (python3-dev), and let TORCHINDUCTOR_CACHE_DIR name a folder that can be written "
    "to and run from"
)
_LONGEST = 240  # characters of a reason


def compile_problem(device_type: str) -> str:
    """Why torch.compile cannot make and run a kernel for this kind of device; "" if it can."""
    try:
        return _missing(device_type) or _trial(device_type)
    except Exception as error:  # of torch, of the compiler, of the file system: whatever it is, no kernel ran
        return f"a first kernel does not compile and run here ({_reason(error)}); {REMEDY}"


def remembered_problem(device_type: str) -> str:
    """`compile_problem`, or "" if it worked in an earlier process; of CUDA, where no GPU is in sight, that of the CPU.

    Triton builds its launchers with the same compiler and headers, so that is the nearest that can be tried there.
    """

    def find() -> str:
        return compile_problem(device_type if device_type == "cpu" or _sees_gpu() else "cpu")

    try:
        circumstances = _circumstances(device_type)
    except (OSError, PackageNotFoundError):
        return find()
    return remembered("compiles", circumstances, find, lasts=lambda problem: not problem)


def _missing(device_type: str) -> str:
    """What is plainly not there, in plainer words than torch's."""
    if device_type != "cpu":
        from torch.utils._triton import has_triton

        return "" if has_triton() else "there is no Triton for this device (pip install triton)"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler here (install g++, or name one in the variable CXX)"
    return ""


def _trial(device_type: str) -> str:
    """Compile and run a kernel, without TorchDynamo, whose counts and caches stay as they are."""
    import torch
    from torch import _inductor

    x = torch.zeros(64, device=device_type)
    options = {"cpp.simdlen": vector_bits()} if device_type == "cpu" else {}
    compiled = _inductor.compile(torch.fx.symbolic_trace(lambda t: (t + 1,)), [x], options=options)
    return "" if bool((compiled(x)[0] == 1).all()) else "a first kernel gives wrong numbers here"


def vector_bits() -> int:
    """Width of the vectors that code for this CPU is written with, as torch chooses it; 0 without vectors."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return pick_vec_isa().bit_width()


def _sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _reason(error: Exception) -> str:
    """What of an error says most: the compiler's first complaint, else the first sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if " error: " in line), lines[0].partition(".  ")[0])[:_LONGEST]


def _circumstances(device_type: str) -> list[str]:
    """What the outcome depends on, as far as it can be seen without torch."""
    compilers = [os.environ.get("CXX") or "g++", "gcc", "cc", "clang"]
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir())
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return [
        device_type,
        socket.gethostname(),
        sys.prefix,
        sys.version,
        version("torch"),
        *(f"{path} {Path(path).stat().st_mtime_ns}" for name in compilers if (path := shutil.which(name))),
        str(headers.exists()),
        _state(folder),
        str(Path("/dev/nvidiactl").exists()),
    ]


def _state(folder: Path) -> str:
    """A folder, or the nearest above it that exists, with how it is mounted and whether it may be written to."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return f"{folder} {there} {os.statvfs(there).f_flag} {os.access(there, os.W_OK | os.X_OK)}"
