"""M+Adam: low-precision training via additive-multiplicative optimization, reproduced.

    from mpadam import MPlusAdam, AdamW, Madam, AdditiveTwin
    from mpadam import UpdateProbe, UpdateProbeCallback

Every rule card (`mpadam.optim.rules`) gives a class. All of them load on first use: `import mpadam`, and all that only
reads a configuration, needs no torch.
"""

from importlib import import_module
from typing import Any

from mpadam.optim.rules import RULES

__version__ = "0.1.0"
_HOME = {
    **{rule.title: "optim.optimizer" for rule in RULES.values()},
    "OptimizerWarning": "optim.checks",
    "UpdateProbe": "probes.update_probe",
    "UpdateProbeCallback": "probes.callback",
}
__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"mpadam.{_HOME[name]}"), name)
    raise AttributeError(f"module 'mpadam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
