"""What this machine is, for all that describe it: processor, GPU, installed packages.

    remembered("compiles", circumstances, find)      find(), or what it returned under the same circumstances

What an earlier process found out about the machine is kept, so that a command need not import torch to ask again: in
the temporary folder, under a name made of what it depends on. Where nothing can be kept, `find` is called each time.

Whether its CPU has instructions for products of bf16 matrices is what torch itself asks; without them torch multiplies
bf16 matrices element by element (`mpadam.model.products`). torch is imported only where it is asked.
"""

import hashlib
import json
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from mpadam.atomic import write_text
from mpadam.inherited import INSTRUCTIONS

Found = TypeVar("Found", str, bool)


def remembered(
    name: str, circumstances: Sequence[str], find: Callable[[], Found], lasts: Callable[[Found], bool] = lambda _: True
) -> Found:
    """What `find` returns, from an earlier process of this user if there was one under these circumstances.

    lasts: whether an outcome is kept; one that may have a passing reason is not.
    """
    try:
        digest = hashlib.sha256(json.dumps(circumstances).encode()).hexdigest()[:32]
        path = Path(tempfile.gettempdir(), f"mpadam-{os.getuid()}", f"{name}-{digest}.json")
    except OSError:  # no temporary folder
        return find()
    with suppress(OSError, ValueError, KeyError, TypeError):
        if path.stat().st_uid == os.getuid():
            return json.loads(path.read_text(encoding="utf-8"))[name]
    found = find()
    if lasts(found):
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_text(path, json.dumps({name: found}))
    return found


# --- what it is -------------------------------------------------------------------------------------------------------


def native_bf16_products() -> bool:
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def remembered_native_bf16_products() -> bool:
    """`native_bf16_products`, without torch where an earlier process has asked it on this processor."""
    return remembered("native_bf16_products", _circumstances(), native_bf16_products)


def _circumstances() -> list[str]:
    """What the answer depends on: the processor, the newest instructions that torch may use, and torch."""
    limits = [f"{name} {os.environ.get(name)}" for name in INSTRUCTIONS]
    return [*_processor(), *limits, sys.prefix, version("torch")]


def _processor() -> list[str]:
    """Its model and instructions; the machine's name where they cannot be read."""
    told = ("vendor", "cpu family", "model", "flags", "Features")
    return [line for line in _cpuinfo() if line.startswith(told)] or [socket.gethostname(), platform.machine()]


def _cpuinfo() -> list[str]:
    """What Linux says of the first processor; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return []


def cpu_name() -> str | None:
    named = (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name"))
    return next(named, None) or platform.processor() or None


def gpu_name(device: str) -> str | None:
    """What CUDA calls the GPU; None on a CPU."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else None


def gpu(index: int) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(index)
    return {"name": found.name, "capability": (found.major, found.minor), "memory_bytes": found.total_memory}


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
