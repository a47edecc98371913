"""What the diagnostics do, as data: a frozen dataclass each, whose defaults are the paper's values or our reading.

A study's configuration overrides single fields; rules hand over all of them as canonical JSON, so a diagnostic is made
again when, and only when, a value changes. Nothing here imports torch.

    >>> parse_options("matrix-fitting", '{"seeds": 3}').seeds
    3
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mpadam.optim.names import parse_optimizer_name
from mpadam.study.options import Kinds, Options, kinds, parsed

Range = tuple[float, float]
Dtype = Literal["bf16", "fp32"]


def _require(holds: bool, options: Any, name: str, remedy: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {getattr(options, name)!r}: {remedy}")


@dataclass(frozen=True)
class MatrixFitting(Options):
    """Figures 3 and 5: minimise |W - W*|^2 / 2 by full gradients, W stored in bf16, at constant rates without decay.

    The paper gives neither sizes nor targets, so all of this is our reading. Magnitudes are log-uniform and signs
    random, so that the error of a weight relative to its target, whose root mean square is reported, is defined for
    all. Tasks: *sign errors* start at the target with `wrong_share` of the signs turned; *zero weights* at zero;
    *small weights* at the target's sign with magnitudes in `small`; these three have targets in `ordinary`. *Large
    weights* have targets in `large` and start at target * exp(N(0, large_error)).

    size: W is size x size.  steps: updates.  seeds: matrices reported on.  tuning_seeds: others, which rates are
    chosen on, by the mean of log(final error): per task for the single branches, over all tasks for the rest.
    rates_adamw, rates_madam: tried for the single branches; rates_additive x rates_multiplicative for the others.
    state_dtype: of the moments.
    """

    size: int = 16
    steps: int = 300
    seeds: int = 5
    tuning_seeds: int = 3
    ordinary: Range = (0.25, 4.0)
    small: Range = (2.5e-4, 4e-3)
    large: Range = (16.0, 1024.0)
    large_error: float = 0.25
    wrong_share: float = 0.5
    rates_adamw: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    rates_madam: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    rates_additive: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
    rates_multiplicative: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    state_dtype: Dtype = "bf16"

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
    """A weight of the reference run and the update put before it, at the peak of the schedules, without decay.

    lr: eta_a of M+Adam and of the twin; lr_mult: eta_m, and Madam's only rate: the reference command, 60m bf16.
    lr_adamw: AdamW's own rate is not given; this is the usual one for GaLore's 60m model [our reading].
    gradient: |g| where a rule depends on it (`unnormalized` only): the root mean square of a gradient of norm 1, the
        clip norm, over 58 million parameters.
    deviation: standard deviation of the neighbours that share a block's scale, as at initialisation.
    """

    lr: float = 8e-5
    lr_mult: float = 4e-3
    lr_adamw: float = 1e-3
    gradient: float = 1.3e-4
    deviation: float = 0.02

    def __post_init__(self) -> None:
        for name in ("lr", "lr_mult", "lr_adamw", "gradient", "deviation"):
            _require(getattr(self, name) > 0, self, name, "give a number above 0")


_FORMS = ("m-plus-adam", "m-plus-adam-rho-tensor", "m-plus-adam-relative", "m-plus-adam-unnormalized")


@dataclass(frozen=True)
class Capabilities(Reference):
    """Table 1, measured: `optimizers` x `write_backs` x `formats` on the real weight store.

    weight: magnitude of an ordinary weight: where a weight that must change its sign starts and, turned, should go,
        and where zero and small weights should go.  small: where the small weight starts.
    limit: updates after which these three are given up.
    updates: equal updates after which a weight that has not moved is "lost"; `magnitudes` is searched for the |w| where
        that begins.  copies: weights of which half must move, where rounding is by chance.
    """

    formats: tuple[str, ...] = ("bf16", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_sticky")
    optimizers: tuple[str, ...] = ("adamw", "madam", *_FORMS, "additive-twin")
    write_backs: tuple[str, ...] = ("nearest", "stochastic", "kahan")
    weight: float = 0.02
    small: float = 1e-3
    limit: int = 600
    updates: int = 64
    copies: int = 64
    magnitudes: Range = (2.0**-20, 4.0)

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
    """Figure 1: updates of one step that change the stored weight, against |w|, rounding to nearest.

    magnitudes: range of |w|.  bins: of |w|, equally wide on the logarithmic axis.  per_bin: random weights in each.
    """

    formats: tuple[str, ...] = ("bf16", "fp8_e4m3", "fp8_e5m2", "nvfp4")
    magnitudes: Range = (1e-6, 4.0)
    bins: int = 96
    per_bin: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.magnitudes
        _require(0 < low < high, self, "magnitudes", "give two magnitudes above 0, the smaller first")
        _require(self.bins >= 2 and self.per_bin >= 2, self, "bins", "give at least 2 bins and 2 weights in each")


@dataclass(frozen=True)
class Dataflow(Options):
    """Figures 7 to 9: one training step of a tiny LLaMA, instrumented.

    figures: figure -> its regime, with the fields of a study's `regimes`.  gradient_dtype, state_dtype, fp8_backend: as
    in a study's `training`.  optimizer: composed name.  micro_batches: forward passes an update.
    """

    figures: dict[str, dict[str, str | int | bool]] = field(
        default_factory=lambda: {
            "figure7": {"masters": "bf16", "compute": "bf16"},
            "figure8": {"masters": "bf16", "compute": "fp8"},
            "figure9": {"masters": "fp8", "compute": "fp8"},
        }
    )
    optimizer: str = "m-plus-adam"
    gradient_dtype: Dtype = "bf16"
    state_dtype: Dtype = "bf16"
    fp8_backend: Literal["native", "emulated"] = "emulated"
    micro_batches: int = 1

    def __post_init__(self) -> None:
        parse_optimizer_name(self.optimizer)
        _require(self.micro_batches >= 1, self, "micro_batches", "give at least 1")


@dataclass(frozen=True)
class Overview(Options):
    """Figure 2 shows the algorithm, not a setting of it: nothing to choose."""


@dataclass(frozen=True)
class Diagnostics(Kinds):
    """The section `diagnostics` of a study's configuration; what is left out takes its default."""

    matrix_fitting: MatrixFitting = MatrixFitting()
    capabilities: Capabilities = Capabilities()
    survival_grid: SurvivalGrid = SurvivalGrid()
    dataflow: Dataflow = Dataflow()
    overview: Overview = Overview()


#: what `mpadam diagnose` can make
KINDS = kinds(Diagnostics)


def parse_options(kind: str, text: str) -> Any:
    """The options of a kind from JSON; fields left out take their defaults. ValueError for those that are wrong."""
    return parsed(Diagnostics(), kind, text)
