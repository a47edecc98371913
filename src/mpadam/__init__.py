"""M+Adam: low-precision training via additive-multiplicative optimization, reproduced.

    from mpadam import MPlusAdam, AdamW, Madam, AdditiveTwin

Every rule card (`mpadam.optim.rules`) gives a class. They load on first use: `import mpadam`, and all that only reads a
configuration, needs no torch.
"""

from typing import Any

from mpadam.optim.rules import RULES

__version__ = "0.1.0"
__all__ = ["OptimizerWarning", "__version__", *(rule.title for rule in RULES.values())]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name == "OptimizerWarning":
        from mpadam.optim.cautions import OptimizerWarning

        return OptimizerWarning
    if any(rule.title == name for rule in RULES.values()):
        from mpadam.optim import optimizer

        return getattr(optimizer, name)
    raise AttributeError(f"module 'mpadam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
