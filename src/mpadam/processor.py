"""Whether this machine's CPU has instructions for products of bf16 matrices: what torch itself asks.

Without them torch multiplies bf16 matrices element by element; see `mpadam.model.products`.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib.metadata import version
from pathlib import Path

from mpadam.inherited import INSTRUCTIONS
from mpadam.remembered import remembered


def native_bf16_products() -> bool:
    """Ask torch."""
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
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return [socket.gethostname(), platform.machine()]
    return [
        line for line in first.splitlines() if line.startswith(("vendor", "cpu family", "model", "flags", "Features"))
    ]
