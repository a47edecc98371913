"""M+Adam: low-precision training via additive-multiplicative optimization, reproduced.

    from mpadam import MPlusAdam, AdamW, Madam, AdditiveTwin

The optimizers load on first use: `import mpadam`, and all that only reads a configuration, needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpadam.optim.optimizer import AdamW, AdditiveTwin, Madam, MPlusAdam

__version__ = "0.1.0"
__all__ = ["AdamW", "AdditiveTwin", "MPlusAdam", "Madam", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("AdamW", "AdditiveTwin", "MPlusAdam", "Madam"):
        from mpadam.optim import optimizer

        return getattr(optimizer, name)
    raise AttributeError(f"module 'mpadam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
