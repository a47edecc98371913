"""What is measured, as data: a frozen dataclass each; a study's configuration overrides single fields. No torch here.

>>> parse_options("step-time", '{"rounds": 3}').rounds
3
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mpadam.numerics.formats import BY_MASTERS
from mpadam.optim.names import parse_optimizer_name
from mpadam.study.section import Kinds, Options

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
class StepTime(Options):
    """Time of one optimizer step on bf16 matrices, next to optimizers of other packages (docs/speed.md)."""

    optimizers: Annotated[
        tuple[str, ...],
        Field(description="Optimizers by composed name."),
    ] = _OPTIMIZERS
    masters: Annotated[
        tuple[str, ...],
        Field(
            description="Masters that each optimizer is timed with, as in `regimes`. Stochastic and Kahan "
            "write-backs are not timed with fp32."
        ),
    ] = ("fp32", "bf16", "fp8", "nvfp4")
    shapes: Annotated[
        tuple[tuple[int, int], ...],
        Field(description="Rows and columns of the matrices that one step updates."),
    ] = ((256, 256), (256, 256), (688, 256))
    warmup: Annotated[
        int,
        Field(description="Steps of each optimizer before anything is timed."),
    ] = 2
    rounds: Annotated[
        int,
        Field(
            description="Number of samples of each optimizer; at least 1. All are visited once per round, in turn, "
            "so that a slow spell of the machine affects all alike."
        ),
    ] = 9
    steps: Annotated[
        int,
        Field(description="Steps per sample, at least 1; the sample is their mean."),
    ] = 2
    compile: Annotated[
        bool,
        Field(description="Whether the steps of this project's optimizers are compiled with torch.compile."),
    ] = False
    rivals: Annotated[
        tuple[Rival, ...],
        Field(
            description="Packages whose optimizers are timed too: torch (fused AdamW), torchao (AdamW with "
            "stochastic rounding) and optimi (AdamW with Kahan summation). One that is not installed is left out and "
            "named in the table."
        ),
    ] = ("torch", "optimi")
    device: Annotated[
        Literal["cpu", "cuda"],
        Field(description="Device that the matrices are on."),
    ] = "cpu"
    threads: Annotated[
        int,
        Field(description="CPU threads of the measurement; at least 1."),
    ] = 1

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
class Memory(Options):
    """Bytes per parameter of weights and optimizer states, in bf16 and with fp32 masters (docs/memory.md)."""

    sizes: Annotated[
        tuple[Literal["60m", "130m", "350m", "1b"], ...],
        Field(description="Models of the paper that the table has rows for."),
    ] = ("60m", "130m", "350m", "1b")


@dataclass(frozen=True)
class Measure(Kinds):
    """Settings of the measurements of time and memory, one section each."""

    step_time: Annotated[StepTime, Field(description="The table of runtime overhead.")] = StepTime()
    memory: Annotated[Memory, Field(description="The table of memory.")] = Memory()


KINDS = Measure().names
parse_options = Measure().parsed
