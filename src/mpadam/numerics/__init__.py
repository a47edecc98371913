"""Number formats and rounding: see `base` (the contract), `formats` (one card each), `plain`, `fp8`, `nvfp4` (their
arithmetic), `grids`, `blocks`, `rounding`, `bits`.

The names below load on first use, so that cards can be read without torch.
"""

from importlib import import_module
from typing import Any

_HOME = {
    **dict.fromkeys(("Encoded", "Format", "Rounding"), "base"),
    **dict.fromkeys(("decode_table", "saturating_cast", "spacing"), "grids"),
    **dict.fromkeys(("Bf16", "Fp32"), "plain"),
    "Fp8Blocks": "fp8",
    "NvFp4": "nvfp4",
    "get_format": "formats",
    "random_bits": "bits",
    "round_bf16": "rounding",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
