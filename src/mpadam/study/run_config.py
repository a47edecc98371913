"""Sections of the configuration that decide what a run computes: model, regime, optimizer, training, evaluation."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from mpadam.llama import LlamaSize
from mpadam.numerics.formats import BY_MASTERS
from mpadam.study.section import Fraction, GrownSection, PositiveInt, Section


class LlamaSection(Section):
    """The shape of a LLaMA, as part of a section."""

    hidden_size: PositiveInt = Field(
        description="Width of the residual stream, in units. It must be an even multiple of `heads`, since rotary "
        "embeddings rotate pairs of units."
    )
    intermediate_size: PositiveInt = Field(
        description="Width of the inner layer of each MLP, in units. Any width works; where it is no multiple of "
        "the regime's `block_size`, the last block of a row of FP8 weights is shorter and has a scale of its own."
    )
    layers: PositiveInt = Field(description="Number of transformer layers.")
    heads: PositiveInt = Field(description="Number of attention heads per layer, each of `hidden_size / heads` units.")

    @property
    def size(self) -> LlamaSize:
        """The shape alone."""
        return LlamaSize(self.hidden_size, self.intermediate_size, self.layers, self.heads)


class ModelConfig(LlamaSection):
    """The shape of one LLaMA, and the length of training that budget 1 means for it.

    Exactly one of `steps_1x` and `tokens_per_parameter` is given.
    """

    micro_batch_size: PositiveInt | None = Field(
        None,
        description="Sequences per forward pass on one device for this model. `null` means "
        "`training.micro_batch_size`; give a smaller number for a model that would not fit into the memory otherwise.",
    )
    steps_1x: PositiveInt | None = Field(
        None, description="Number of updates at budget 1; budget 4 has four times as many."
    )
    tokens_per_parameter: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Sequence positions per parameter at budget 1, padding included; the number of updates follows "
        "from it, rounded up. Chinchilla's rule is 20.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be an even multiple of heads {self.heads}")
        if (self.steps_1x is None) == (self.tokens_per_parameter is None):
            raise ValueError("give exactly one of steps_1x and tokens_per_parameter, e.g.  steps_1x: 10000")
        return self

    def parameters(self, vocab_size: int) -> int:
        """Number of parameters."""
        return self.size.parameters(vocab_size)

    def steps(self, budget: int, *, vocab_size: int, positions_per_step: int) -> int:
        """Updates at `budget`, a step being `positions_per_step` sequence positions."""
        if self.steps_1x is not None:
            return budget * self.steps_1x
        assert self.tokens_per_parameter is not None
        return math.ceil(budget * self.tokens_per_parameter * self.parameters(vocab_size) / positions_per_step)


class RegimeConfig(GrownSection):
    """A precision regime: the format of stored weights (masters), and that of matrix products (compute)."""

    added = frozenset({"carry_dtype", "block_rows"})

    masters: str = Field(
        description="Format in which the weights of attention and MLP projections are stored between updates: `fp32`, "
        "`bf16`, `fp8` (e5m2) or `fp8e4m3` in blocks, `nvfp4`, or `nvfp4s`, which is `nvfp4` with a power of two as "
        "tensor scale that changes only when it has to. Embeddings, norms and the output head are bf16, or fp32 where "
        "this is `fp32`."
    )
    compute: Literal["bf16", "fp8"] = Field(
        description="Precision of the operands of the matrix products of attention and MLP projections. `fp8` is "
        "e4m3 in the forward pass and e5m2 for gradients, with delayed scaling."
    )
    block_size: PositiveInt = Field(
        256,
        description="Number of consecutive weights of a row that share one scale; used by the masters `fp8` and "
        "`fp8e4m3`. The default is the reference command's.",
    )
    block_rows: PositiveInt = Field(
        1,
        description="Number of rows of a block; above 1, blocks are tiles of `block_rows` x `block_size` weights. Used "
        "by the masters `fp8` and `fp8e4m3`.",
    )
    power_of_two_scale: bool = Field(
        True,
        description="Whether the scales of `fp8` and `fp8e4m3` masters are powers of two, stored in 1 byte; false "
        "stores them in FP16.",
    )
    shadow: Literal["none", "refreshed", "persistent"] = Field(
        "none",
        description="Second copy of weights that are stored in FP8 or NVFP4. `none` rounds each update once; "
        "`refreshed` decodes the weight into `shadow_dtype`, updates it there and encodes it again, which rounds "
        "twice; `persistent` keeps the copy between updates, a hidden master and so a control. Kahan write-backs "
        "take `none` only.",
    )
    shadow_dtype: Literal["bf16", "fp32"] = Field("bf16", description="Data type of the shadow, where there is one.")
    carry_dtype: Literal["bf16", "fp32"] = Field(
        "bf16",
        description="Data type of the rounding error that the Kahan write-back carries to the next update. With FP8 "
        "and NVFP4 masters a bf16 carry resolves less than most updates; `fp32` is the choice for a comparison there.",
    )
    amax_history: PositiveInt = Field(
        16,
        description="Number of updates whose largest magnitude decides the scale of an FP8 operand; used by "
        "`compute: fp8`. The default is the paper's.",
    )
    margin: Annotated[int, Field(ge=0, le=8)] = Field(
        0,
        description="Powers of two left free between that largest magnitude and the largest FP8 number; used by "
        "`compute: fp8`. Raise it if operands saturate.",
    )
    fp8_eval: bool = Field(
        False, description="Whether validation multiplies in FP8 too, and not in bf16; used by `compute: fp8`."
    )

    @field_validator("masters")
    @classmethod
    def _known_format(cls, masters: str) -> str:
        if masters not in BY_MASTERS:
            raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, BY_MASTERS))})
        return masters

    @model_validator(mode="after")
    def _shadow_beside_codes(self) -> Self:
        if self.shadow != "none" and not BY_MASTERS[self.masters].codes:
            raise ValueError(
                f"shadow {self.shadow!r} accompanies weights stored as codes, not {self.masters} masters; "
                "write  shadow: none"
            )
        return self


class OptimizerConfig(Section):
    """A named entry: which optimizer it is, its fixed hyper-parameters, and the values that its tuning tries.

    Hyper-parameters that appear in neither `values` nor `search` have the optimizer's defaults (docs/optimizers.md).
    """

    optimizer: str | None = Field(
        None,
        description="Composed name of the optimizer: rule, form and write-back, for example "
        "`m-plus-adam-relative-sr`. `null` means that the name of the entry says it, up to any `@`.",
    )
    values: dict[str, float | None] = Field(
        default_factory=dict,
        description="Fixed hyper-parameters by name, for example `lr: 8e-5`. `null` is a value of "
        "`max_relative_step` alone, whose bound it switches off.",
    )
    search: dict[str, list[float]] = Field(
        default_factory=dict,
        description="Values that the tuning tries, by hyper-parameter. With `tuning.mode: search` they replace the "
        "fixed value; with `fixed` they are not used. An overlay removes a hyper-parameter from the search with `lr: "
        "null`.",
    )
    warmup: Fraction | None = Field(
        None,
        description="Share of the updates, from 0 to 1, over which both rates warm up; `null` means what the "
        "schedules say. It is meant for ablations of the warm-up.",
    )

    @field_validator("search", mode="before")
    @classmethod
    def _without_nulls(cls, search: object) -> object:
        """An overlay takes a value out of the search by `lr: null`; leaving it out would not, dictionaries merge."""
        return {k: v for k, v in search.items() if v is not None} if isinstance(search, dict) else search

    @model_validator(mode="after")
    def _search(self) -> Self:
        for key, candidates in self.search.items():
            if not candidates or len(set(candidates)) < len(candidates):
                raise ValueError(f"search.{key}: list each value once, at least one, e.g.  {key}: [1e-3, 3e-3]")
        return self


class ScheduleConfig(Section):
    """A learning rate over time: a linear warm-up, then decay to `min_ratio` of the peak."""

    kind: Literal["linear", "cosine", "logcosine", "constant"] = Field(
        description="Shape of the decay after the warm-up. `logcosine` is a cosine on a logarithmic time axis; "
        "`constant` does not decay."
    )
    warmup: Fraction = Field(
        0.2, description="Share of the updates, from 0 to 1, over which the rate rises linearly to its peak."
    )
    min_ratio: Fraction = Field(0.0, description="Rate after the last update, as a share of the peak from 0 to 1.")
    alpha: Annotated[float, Field(gt=0)] = Field(
        3.0,
        description="Curvature of the time axis of `logcosine`; unused by the other kinds. The rate falls the "
        "earlier, the larger it is, and small values approach a plain cosine.",
    )


class TrainingConfig(Section):
    """What all trainings of the study share: everything that the grids do not vary (docs/training.md)."""

    global_batch_size: PositiveInt = Field(
        512,
        description="Sequences per update, over all devices. It must be a multiple of every model's micro-batch "
        "size. The default is the paper's.",
    )
    micro_batch_size: PositiveInt = Field(
        256,
        description="Sequences per forward pass on one device. Smaller numbers need less memory; gradients of "
        "several micro-batches are summed in float32.",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        1.0,
        description="Largest global L2 norm of the gradient: a larger gradient is scaled down to it before the "
        "update. `null` does not clip.",
    )
    schedule: ScheduleConfig = Field(
        ScheduleConfig(kind="linear"),
        description="Schedule of the additive rate, `lr` of AdamW and M+Adam. The default has `kind: linear`.",
    )
    schedule_mult: ScheduleConfig | None = Field(
        ScheduleConfig(kind="logcosine"),
        description="Schedule of the multiplicative rate, `lr_mult` of M+Adam and `lr` of Madam. The default has "
        "`kind: logcosine`; `null` means that it follows `schedule`.",
    )
    gradient_dtype: Literal["bf16", "fp32"] = Field(
        "bf16",
        description="Precision of the gradient that the optimizer gets. Sums over micro-batches and devices are in "
        "float32 either way; `bf16` rounds the result.",
    )
    state_dtype: Literal["bf16", "fp32"] = Field(
        "bf16",
        description="Data type of the optimizer's moments. Regimes with `masters: fp32` always have fp32 moments.",
    )
    device: Literal["cpu", "cuda"] = Field("cuda", description="Device that trainings run on.")
    threads: PositiveInt = Field(
        8,
        description="CPU threads per training, and CPU cores that its job asks for. On a CPU their number changes "
        "the order of sums, hence the last digits of a run.",
    )
    compile: Literal["auto", True, False] = Field(
        "auto",
        description="Whether the optimizer step is compiled with torch.compile; on CUDA also the loss, the casts of "
        "native FP8 and the elementwise work of the layers. `auto` compiles where a compiler works on the machine that "
        "writes `run.yaml`.",
    )
    attention: Literal["sdpa", "flash_attention_2", "eager"] = Field(
        "sdpa",
        description="Implementation of attention in Transformers: torch's scaled dot product, FlashAttention 2 "
        "(CUDA, compute capability 8.0 or higher), or plain matrix products.",
    )
    liger: bool = Field(
        False, description="Whether norms, rotary embedding and MLP use Liger's fused kernels, which need CUDA."
    )
    fp8_backend: Literal["auto", "transformer_engine", "native", "emulated"] = Field(
        "auto",
        description="Engine of FP8 products (docs/fp8.md); used by regimes with `compute: fp8`. `native` is torch's "
        "scaled matrix product and `emulated` multiplies FP8 values in bf16, anywhere and without FP8's speed. "
        "`auto` takes the first that works; for `device: cuda` the machine that writes `run.yaml` must have the GPU.",
    )
    bf16_products: Literal["auto", "native", "float32"] = Field(
        "auto",
        description="How a CPU multiplies bf16 matrices: with its bf16 instructions (`native`), or in float32 with "
        "one rounding of the result (`float32`). `auto` is `native` where the processor has such instructions; other "
        "values need `device: cpu`.",
    )
    check_nonfinite_every: PositiveInt = Field(
        1,
        description="Updates between two checks that loss and gradient norm are finite; a run in which they are not "
        "ends as diverged. Larger numbers wait for the GPU less often, and do not change a run that stays finite.",
    )
    log_every: PositiveInt = Field(10, description="Updates between two lines of `metrics.jsonl`.")
    checkpoint_every: PositiveInt = Field(
        1000, description="Updates between two checkpoints, from which an interrupted run resumes exactly."
    )
    plot_every: PositiveInt = Field(
        1000, description="Updates between two drawings of `loss.svg` in the run folder; each validation draws it too."
    )
    probe_every: PositiveInt | None = Field(
        None,
        description="Updates between two probes, which record how many weights an update changes, its descent and "
        "stale moments (docs/diagnostics.md). `null` never probes. Probes change no number of a run.",
    )
    probe_layers: bool = Field(
        False,
        description="Whether probes also record, for the projections of each layer, which updates survive, and how "
        "large steps are next to the spacing of the stored format. It doubles the cost of a probe.",
    )

    @model_validator(mode="after")
    def _products_of_a_cpu(self) -> Self:
        if self.device != "cpu" and self.bf16_products != "auto":
            raise ValueError(
                f"bf16_products {self.bf16_products!r} is a choice for CPUs, and device is {self.device}; write  "
                "bf16_products: auto"
            )
        return self


class EvaluationConfig(Section):
    """Validation of a run. Its tokens are `data.validation_tokens`."""

    every: PositiveInt | None = Field(
        None, description="Updates between two validations; `null` validates only after the last update."
    )
    batch_size: PositiveInt = Field(
        256,
        description="Sequences per forward pass on one device during validation. It changes the result only by "
        "rounding (about 1e-6 relative in float32, 1e-4 in bf16).",
    )
