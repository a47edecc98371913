"""What the diagnostics do, as data: a frozen dataclass each, whose defaults are the paper's values or our reading.

A study's configuration overrides single fields; rules hand over all of them as canonical JSON, so a diagnostic is made
again when, and only when, a value changes. Nothing here imports torch.

    >>> parse_options("matrix-fitting", '{"seeds": 3}').seeds
    3
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from mpadam.optim.names import parse_optimizer_name
from mpadam.study.section import Kinds, Options

Range = tuple[float, float]
Dtype = Literal["bf16", "fp32"]


def _require(holds: bool, options: Any, name: str, remedy: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {getattr(options, name)!r}: {remedy}")


@dataclass(frozen=True)
class MatrixFitting(Options):
    """Figures 3 and 5: fit a matrix W, stored in bf16, to a target T by full gradients of |W - T|² / 2.

    Rates are constant and nothing decays. The paper gives neither sizes nor targets, so all of this is our reading.
    Magnitudes are log-uniform and signs random, so that the error of a weight relative to its target, whose root mean
    square is reported, is defined for all. Four tasks differ in where W starts: with signs of the target turned, at
    zero, with small magnitudes of the right sign, and near a target of large magnitudes (docs/diagnostics.md).
    """

    size: Annotated[
        int,
        Field(description="Number of rows, and of columns, of W; at least 1."),
    ] = 16
    steps: Annotated[
        int,
        Field(
            description="Number of updates, at least 1. The final error is the geometric mean over the last tenth "
            "of them."
        ),
    ] = 300
    seeds: Annotated[
        int,
        Field(description="Number of random matrices whose errors are reported; at least 1."),
    ] = 5
    tuning_seeds: Annotated[
        int,
        Field(
            description="Number of further random matrices, at least 1, on which the rates are chosen: by the "
            "geometric mean of the final error, per task for AdamW and Madam alone, over all tasks for the others."
        ),
    ] = 3
    ordinary: Annotated[
        Range,
        Field(
            description="Smallest and largest magnitude of the targets of the tasks on sign errors, zero weights "
            "and small weights."
        ),
    ] = (0.25, 4.0)
    small: Annotated[
        Range,
        Field(description="Smallest and largest magnitude at which the weights of the task on small weights start."),
    ] = (2.5e-4, 4e-3)
    large: Annotated[
        Range,
        Field(description="Smallest and largest magnitude of the targets of the task on large weights."),
    ] = (16.0, 1024.0)
    large_error: Annotated[
        float,
        Field(description="Standard deviation of ln(start / target) in the task on large weights."),
    ] = 0.25
    wrong_share: Annotated[
        float,
        Field(
            description="Share of the weights, from 0 to 1, that start with the wrong sign in the task on sign errors."
        ),
    ] = 0.5
    rates_adamw: Annotated[
        tuple[float, ...],
        Field(description="Learning rates that are tried for AdamW."),
    ] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    rates_madam: Annotated[
        tuple[float, ...],
        Field(description="Learning rates that are tried for Madam."),
    ] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    rates_additive: Annotated[
        tuple[float, ...],
        Field(
            description="Additive rates that are tried for the methods with two branches, each with every "
            "multiplicative rate."
        ),
    ] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
    rates_multiplicative: Annotated[
        tuple[float, ...],
        Field(description="Multiplicative rates that are tried for the methods with two branches."),
    ] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    state_dtype: Annotated[
        Dtype,
        Field(description="Data type of the moments."),
    ] = "bf16"

    def __post_init__(self) -> None:
        for name in ("size", "steps", "seeds", "tuning_seeds"):
            _require(getattr(self, name) >= 1, self, name, "give at least 1")
        for name in ("ordinary", "small", "large"):
            low, high = getattr(self, name)
            _require(0 < low <= high, self, name, "give two magnitudes above 0, the smaller first, e.g. [0.25, 4.0]")
        _require(0 <= self.wrong_share <= 1, self, "wrong_share", "give a share between 0 and 1")
        for name in ("rates_adamw", "rates_madam", "rates_additive", "rates_multiplicative"):
            rates = getattr(self, name)
            _require(bool(rates) and min(rates) > 0, self, name, "list at least one rate above 0")


@dataclass(frozen=True)
class Reference(Options):
    """A weight of the reference run and an update for it, at the peak of the schedules and without decay."""

    lr: Annotated[
        float,
        Field(
            description="Additive rate eta_a of M+Adam and of the additive twin. The default is the reference "
            "command's, for 60m in bf16."
        ),
    ] = 8e-5
    lr_mult: Annotated[
        float,
        Field(
            description="Multiplicative rate eta_m, and the only rate of Madam. The default is the reference "
            "command's, for 60m in bf16."
        ),
    ] = 4e-3
    lr_adamw: Annotated[
        float,
        Field(
            description="Rate of AdamW. The paper does not give it; the default is the usual one for GaLore's 60m "
            "model [our reading]."
        ),
    ] = 1e-3
    gradient: Annotated[
        float,
        Field(
            description="Magnitude of every gradient, on which only the form `unnormalized` depends. The default is "
            "the root mean square of a gradient of norm 1, the clip norm, over 58 million parameters."
        ),
    ] = 1.3e-4
    deviation: Annotated[
        float,
        Field(
            description="Standard deviation of the neighbouring weights that share the scale of a block. The "
            "default is that of the initial weights."
        ),
    ] = 0.02

    def __post_init__(self) -> None:
        for name in ("lr", "lr_mult", "lr_adamw", "gradient", "deviation"):
            _require(getattr(self, name) > 0, self, name, "give a number above 0")


_FORMS = ("m-plus-adam", "m-plus-adam-rho-tensor", "m-plus-adam-relative", "m-plus-adam-unnormalized")


@dataclass(frozen=True)
class Capabilities(Reference):
    """Table 1, measured for every combination of optimizer, write-back and format."""

    formats: Annotated[
        tuple[str, ...],
        Field(description="Storage formats, by their names in `mpadam.numerics`."),
    ] = ("bf16", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_sticky")
    optimizers: Annotated[
        tuple[str, ...],
        Field(description="Optimizers by name, without a write-back."),
    ] = ("adamw", "madam", *_FORMS, "additive-twin")
    write_backs: Annotated[
        tuple[str, ...],
        Field(description="Write-backs that each optimizer is measured with."),
    ] = ("nearest", "stochastic", "kahan")
    weight: Annotated[
        float,
        Field(
            description="Magnitude of an ordinary weight: the target of a weight that starts at zero, small, or at "
            "this magnitude with the wrong sign."
        ),
    ] = 0.02
    small: Annotated[
        float,
        Field(description="Magnitude at which the small weight starts; it must be below `weight`."),
    ] = 1e-3
    limit: Annotated[
        int,
        Field(
            description="Number of updates, at least 1, after which the measurement gives up on a weight that has "
            "not left zero, changed its sign, or grown to half of `weight`."
        ),
    ] = 600
    updates: Annotated[
        int,
        Field(
            description="Number of equal updates, at least 1, after which a weight that has not moved counts as lost."
        ),
    ] = 64
    copies: Annotated[
        int,
        Field(
            description="Number of copies, at least 1, of each weight under stochastic rounding, of which half must "
            "have moved after `updates`."
        ),
    ] = 64
    magnitudes: Annotated[
        Range,
        Field(
            description="Smallest and largest |w| between which the magnitude is searched where weights begin to be "
            "lost. The smaller default is 2^-20."
        ),
    ] = (2.0**-20, 4.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("limit", "updates", "copies"):
            _require(getattr(self, name) >= 1, self, name, "give at least 1")
        low, high = self.magnitudes
        _require(0 < low < high, self, "magnitudes", "give two magnitudes above 0, the smaller first")
        _require(0 < self.small < self.weight, self, "small", f"give a magnitude below weight = {self.weight}")
        for name in self.optimizers:
            parse_optimizer_name(name)


@dataclass(frozen=True)
class SurvivalGrid(Reference):
    """Figure 1: which parts of a single update change the stored weight, against |w|, rounding to nearest."""

    formats: Annotated[
        tuple[str, ...],
        Field(description="Storage formats, by their names in `mpadam.numerics`; one panel each."),
    ] = ("bf16", "fp8_e4m3", "fp8_e5m2", "nvfp4")
    magnitudes: Annotated[
        Range,
        Field(description="Smallest and largest |w|."),
    ] = (1e-6, 4.0)
    bins: Annotated[
        int,
        Field(description="Number of bins of |w|, equally wide on a logarithmic axis; at least 2."),
    ] = 96
    per_bin: Annotated[
        int,
        Field(description="Number of random weights per bin; at least 2."),
    ] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.magnitudes
        _require(0 < low < high, self, "magnitudes", "give two magnitudes above 0, the smaller first")
        _require(self.bins >= 2 and self.per_bin >= 2, self, "bins", "give at least 2 bins and 2 weights in each")


@dataclass(frozen=True)
class Dataflow(Options):
    """Figures 7 to 9: the data types in one training step of a tiny LLaMA."""

    figures: Annotated[
        dict[str, dict[str, str | int | bool]],
        Field(description="Regime of each figure, by the figure's name, with the keys of the section `regimes`."),
    ] = field(
        default_factory=lambda: {
            "figure7": {"masters": "bf16", "compute": "bf16"},
            "figure8": {"masters": "bf16", "compute": "fp8"},
            "figure9": {"masters": "fp8", "compute": "fp8"},
        }
    )
    optimizer: Annotated[
        str,
        Field(description="Optimizer, by its composed name."),
    ] = "m-plus-adam"
    gradient_dtype: Annotated[
        Dtype,
        Field(description="Precision of gradients, as `training.gradient_dtype`."),
    ] = "bf16"
    state_dtype: Annotated[
        Dtype,
        Field(description="Data type of the moments, as `training.state_dtype`."),
    ] = "bf16"
    fp8_backend: Annotated[
        Literal["native", "emulated"],
        Field(
            description="Engine of FP8 products, as `training.fp8_backend`; `native` trains on a CUDA device, "
            "`emulated` on the CPU."
        ),
    ] = "emulated"
    micro_batches: Annotated[
        int,
        Field(description="Number of micro-batches per update; at least 1."),
    ] = 1

    def __post_init__(self) -> None:
        parse_optimizer_name(self.optimizer)
        _require(self.micro_batches >= 1, self, "micro_batches", "give at least 1")


@dataclass(frozen=True)
class Overview(Options):
    """Figure 2, a diagram of the algorithm. It has no settings."""


@dataclass(frozen=True)
class Diagnostics(Kinds):
    """Settings of the measurements that need no trained model, one section each (docs/diagnostics.md)."""

    matrix_fitting: Annotated[MatrixFitting, Field(description="Figures 3 and 5.")] = MatrixFitting()
    capabilities: Annotated[Capabilities, Field(description="Table 1.")] = Capabilities()
    survival_grid: Annotated[SurvivalGrid, Field(description="Figure 1.")] = SurvivalGrid()
    dataflow: Annotated[Dataflow, Field(description="Figures 7 to 9.")] = Dataflow()
    overview: Annotated[Overview, Field(description="Figure 2.")] = Overview()


#: what `mpadam diagnose` can make
KINDS = Diagnostics().names
parse_options = Diagnostics().parsed
