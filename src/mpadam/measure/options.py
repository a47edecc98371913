"""What is measured, as data: a frozen dataclass each; a study's configuration overrides single fields. No torch here.

>>> parse_options("step-time", '{"rounds": 3}').rounds
3
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from mpadam.numerics.formats import BY_MASTERS
from mpadam.optim.names import parse_optimizer_name

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_OPTIMIZERS = (
    "adamw",
    "adamw-sr",
    "adamw-kahan",
    "m-plus-adam",
    "m-plus-adam-sr",
    "m-plus-adam-kahan",
    "m-plus-adam-relative",
    "m-plus-adam-rho-tensor",
    "m-plus-adam-unnormalized",
    "m-plus-adam-apollo-e",
    "additive-twin",
)
Rival = Literal["torch", "torchao", "optimi"]


@dataclass(frozen=True)
class StepTime:
    """Time of one optimizer step: `optimizers` x `masters` on bf16 matrices of `shapes`, and others' optimizers beside.

    warmup: steps before the first timing, of each.  rounds: visits to each, in turn, so that a slow spell of the
    machine hits all alike; a sample is the mean of `steps` steps of one visit.  compile: torch.compile of our step.
    rivals: whose optimizers stand beside, where they are installed.  threads: of the CPU, on a CPU.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    optimizers: tuple[str, ...] = _OPTIMIZERS
    masters: tuple[str, ...] = ("fp32", "bf16", "fp8", "nvfp4")
    shapes: tuple[tuple[int, int], ...] = ((256, 256), (256, 256), (688, 256))
    warmup: int = 2
    rounds: int = 9
    steps: int = 2
    compile: bool = False
    rivals: tuple[Rival, ...] = ("torch", "optimi")
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("rounds", "steps", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: give at least 1")
        if not self.shapes or any(size < 1 for shape in self.shapes for size in shape):
            raise ValueError(f"shapes = {self.shapes}: give at least one matrix, e.g. [[256, 256]]")
        for optimizer in self.optimizers:
            parse_optimizer_name(optimizer)
        if unknown := set(self.masters) - set(BY_MASTERS):
            raise ValueError(f"masters = {min(unknown)!r}: give some of {', '.join(BY_MASTERS)}")


@dataclass(frozen=True)
class Memory:
    """Bytes a parameter of the paper's `sizes` in bf16, and with the fp32 masters that they are to save."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    sizes: tuple[Literal["60m", "130m", "350m", "1b"], ...] = ("60m", "130m", "350m", "1b")


@dataclass(frozen=True)
class Measure:
    """The section `measure` of a study's configuration; what is left out takes its default."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    step_time: StepTime = StepTime()
    memory: Memory = Memory()

    def text(self, kind: str) -> str:
        """All options of one measurement as canonical JSON, defaults too: the parameter of its rule."""
        return json.dumps(asdict(getattr(self, kind.replace("-", "_"))), sort_keys=True, separators=(",", ":"))


KINDS: tuple[str, ...] = tuple(f.name.replace("_", "-") for f in fields(Measure))


def parse_options(kind: str, text: str) -> Any:
    """The options of a measurement from JSON; fields left out take their defaults.

    Raises ValueError with key, value and remedy for unknown fields and for values that make no sense.
    """
    cls = {"step-time": StepTime, "memory": Memory}[kind]
    try:
        return TypeAdapter(cls).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "options"
        known = ", ".join(f.name for f in fields(cls))
        raise ValueError(f"{kind}: {where} = {first['input']!r}: {first['msg']}; its options are {known}") from None
