"""Versions of the libraries that a training on a GPU uses, and the files that they load."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from gpu.parts import Case, Row, Setting, apart, need
from mpadam.training.provenance import PACKAGES, environment

LOADING = ("transformer_engine.pytorch", "flash_attn", "liger_kernel.transformers")
SHARED = r"/[^\s]*/((?:libcudnn|libnccl|libcublas|libcublasLt|libcudart|libnvrtc)\.so[.\d]*)$"


def cases(setting: Setting) -> Iterator[Case]:
    """Packages, what CUDA is, and what is loaded."""
    yield Case("packages", packages)
    yield Case("CUDA", partial(apart, cuda))
    yield Case("loaded", partial(apart, loaded))


def packages() -> list[Row]:
    """Python packages."""
    here = environment("cpu")
    found = here["packages"]
    rows = [Row("python", {"version": here["python"]})]
    rows += [Row(name, {"version": found[name]}) for name in PACKAGES if name in found]
    return rows + [Row(name, absent="not installed") for name in PACKAGES if name not in found]


def cuda() -> list[Row]:
    """The GPU, its driver, and NVIDIA's libraries as torch tells their versions."""
    need(device="cuda")
    gpu = torch.cuda.get_device_properties(0)
    return [
        Row("GPU", {"version": f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}"}),
        Row("driver", {"version": _driver()}),
        Row("CUDA", {"version": torch.version.cuda}),
        Row("cuDNN", {"version": torch.backends.cudnn.version()}),
        Row("NCCL", {"version": ".".join(map(str, torch.cuda.nccl.version()))}),
    ]


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown: nvidia-smi is not on PATH"
    asked = [program, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def loaded() -> list[Row]:
    """NVIDIA's libraries in this process once all packages are imported: a second copy of one is a fault."""
    need(device="cuda")
    torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4, device="cuda"), torch.ones(1, 1, 2, 2, device="cuda"))
    for name in LOADING:
        with suppress(ImportError, OSError, RuntimeError):  # other parts say why it cannot be imported
            import_module(name)
    return [
        Row(name, {"loaded from": ", ".join(sorted(files))}, "more than one copy is loaded" if len(files) > 1 else "")
        for name, files in sorted(mapped(Path("/proc/self/maps").read_text(encoding="utf-8")).items())
    ]


def mapped(maps: str) -> dict[str, set[str]]:
    """Name of a library without its version -> the files that it is loaded from, without what is before packages."""
    found: dict[str, set[str]] = {}
    for line in maps.splitlines():
        if match := re.search(SHARED, line):
            file = match[0].rpartition("site-packages/")[2]
            found.setdefault(match[1].partition(".so")[0], set()).add(file)
    return found
