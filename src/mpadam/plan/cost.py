"""The cost model: FLOPs, bytes and seconds of a training, from shapes and stated assumptions. Pure functions.

    forward FLOPs a position   2 L (4 h^2 + 3 h f)      projections: q, k, v, o and the three of the MLP
                             + 4 L h s                  attention scores and their product with the values
                             + 2 h V                    head
    training                   3 x forward              the backward pass costs two forward passes

h hidden, f intermediate, L layers, s sequence length, V vocabulary. A multiply-add counts as two; attention is counted
in full, as is usual for MFU, though a causal kernel skips half; look-ups, norms and the optimizer count nothing.
"""

import math
from dataclasses import dataclass

from mpadam.numerics.formats import card_of
from mpadam.optim.names import OptimizerName
from mpadam.optim.rules import RULES
from mpadam.plan.assumptions import (
    ATTENTION_SHARE,
    AUTO_BACKEND,
    BANDWIDTH_SHARE,
    COMPILED,
    CPU_RATE,
    DATA_PARALLEL_EFFICIENCY,
    EAGER,
    FP8_SHARE,
    GPU_OVERHEAD_BYTES,
    HEAD_SHARE,
    LOSS_BYTES_PER_HEAD_WEIGHT,
    SIZE_CLASSES,
    Gpu,
    SizeClass,
)
from mpadam.study.run_config import EvaluationConfig, ModelConfig, RegimeConfig, TrainingConfig

BACKWARD_AND_FORWARD = 3
CHUNK_BYTES = 2**28  # of float32 logits at a time in `mpadam.model.loss`


@dataclass(frozen=True)
class Flops:
    """Forward FLOPs of one position."""

    projections: int
    attention: int
    head: int

    @property
    def forward(self) -> int:
        return self.projections + self.attention + self.head

    @property
    def training(self) -> int:
        """Forward and backward."""
        return BACKWARD_AND_FORWARD * self.forward


@dataclass(frozen=True)
class Shape:
    """A model and what its cost depends on besides its configuration."""

    model: ModelConfig
    vocab_size: int
    sequence_length: int

    @property
    def parameters(self) -> int:
        return self.model.parameters(self.vocab_size)

    @property
    def low_precision_parameters(self) -> int:
        """Those that FP8 and NVFP4 masters store low: attention and MLP projections (docs/algorithm.md, "Where")."""
        return self.model.size.projections

    @property
    def flops(self) -> Flops:
        h, layers = self.model.hidden_size, self.model.layers
        return Flops(
            projections=2 * self.low_precision_parameters,
            attention=4 * layers * h * self.sequence_length,
            head=2 * h * self.vocab_size,
        )

    @property
    def size_class(self) -> SizeClass:
        return next(c for c in SIZE_CLASSES if self.parameters <= c.parameters)


@dataclass(frozen=True)
class Work:
    """What one run or trial does. sequences, positions: of training; evaluated: positions of all validations."""

    steps: int
    sequences: int
    positions: int
    evaluated: int

    def flops(self, shape: Shape) -> int:
        return self.positions * shape.flops.training + self.evaluated * shape.flops.forward

    @property
    def equivalent_positions(self) -> float:
        """Training positions that cost as much as everything it does: a validated position costs a third."""
        return self.positions + self.evaluated / BACKWARD_AND_FORWARD


def work(
    shape: Shape,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
    *,
    budget: int,
    validation_tokens: int,
    fraction: float = 1.0,
) -> Work:
    """Steps and positions of a run at `budget`, or of a trial of that `fraction` of its steps.

    validation_tokens: of the fixed set; a run or trial is judged on one half of it.
    """
    batch = training.global_batch_size
    full = shape.model.steps(budget, vocab_size=shape.vocab_size, positions_per_step=batch * shape.sequence_length)
    steps = max(1, round(full * fraction))
    validations = 1 if evaluation.every is None else math.ceil(steps / evaluation.every)
    return Work(steps, steps * batch, steps * batch * shape.sequence_length, validations * (validation_tokens // 2))


# --- bytes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightBytes:
    """Bytes over all parameters. copy: of the weights for the compute, where they are not the stored ones."""

    stored: float
    copy: float
    gradients: float
    states: float
    carry: float

    @property
    def resident(self) -> float:
        """What stays in memory between and during steps."""
        return self.stored + self.copy + self.gradients + self.states + self.carry

    @property
    def step(self) -> float:
        """What an optimizer step reads and writes: all of it read but the copy, all of it written but the gradients."""
        read = self.stored + self.gradients + self.states + self.carry
        return read + self.stored + self.copy + self.states + self.carry


def micro_batch_size(shape: Shape, training: TrainingConfig) -> int:
    return shape.model.micro_batch_size or training.micro_batch_size


def weight_bytes(shape: Shape, regime: RegimeConfig, name: OptimizerName, training: TrainingConfig) -> WeightBytes:
    card = card_of(regime.masters)
    low = shape.low_precision_parameters if card.codes else 0
    plain = shape.parameters - low
    plain_format = card_of("fp32" if regime.masters == "fp32" else "bf16")
    states = RULES[name.rule].state_names(name.form, name.second_moment)
    state = 4 if regime.masters == "fp32" or training.state_dtype == "fp32" else 2
    in_fp32 = training.gradient_dtype == "fp32" or training.global_batch_size > micro_batch_size(shape, training)
    return WeightBytes(
        stored=low * card.bytes_per_weight + plain * plain_format.bytes_per_weight,
        copy=2.0 * (shape.parameters if regime.masters == "fp32" else low),
        gradients=(4.0 if in_fp32 else 2.0) * shape.parameters,
        states=float(state * sum(each != "v_r" for each in states) * shape.parameters),
        carry=2.0 * shape.parameters if name.write_back == "kahan" else 0.0,
    )


def activation_bytes(shape: Shape, micro_batch_size: int) -> float:
    """What a forward pass in bf16 keeps for the backward pass, without recomputation.

    24 h + 8 f bytes per position and layer: what autograd saves in Transformers' LLaMA with SDPA (measured with
    saved-tensor hooks). The head works in chunks: three arrays of float32 logits, hidden states and their gradient,
    and the head's gradient in float32.
    """
    h, f = shape.model.hidden_size, shape.model.intermediate_size
    positions = micro_batch_size * shape.sequence_length
    logits = min(CHUNK_BYTES, 4 * positions * shape.vocab_size)
    head = 3 * logits + positions * 4 * h + 4 * shape.vocab_size * h
    return positions * shape.model.layers * (24 * h + 8 * f) + head


def gpu_bytes(shape: Shape, regime: RegimeConfig, name: OptimizerName, training: TrainingConfig, *, gpus: int) -> float:
    """Peak memory of one GPU; with several, data parallelism keeps a second copy of the gradients."""
    weights = weight_bytes(shape, regime, name, training)
    buckets = weights.gradients if gpus > 1 else 0.0
    return weights.resident + buckets + activation_bytes(shape, micro_batch_size(shape, training)) + GPU_OVERHEAD_BYTES


# --- seconds ---------------------------------------------------------------------------------------------------------


def fp8_backend(regime: RegimeConfig, training: TrainingConfig, gpu: Gpu) -> str | None:
    """What computes FP8 products on that GPU; None without FP8."""
    if regime.compute == "bf16":
        return None
    if training.fp8_backend != "auto":
        return training.fp8_backend
    return AUTO_BACKEND if "fp8" in gpu.peak else "emulated"


def elementwise_bytes(shape: Shape, backend: str | None, *, compiled: bool) -> float:
    """What all operations but the products read and write in forward and backward pass, for each position.

    FP8 casts 3 h + f values of inputs (query, key and value share theirs, as do gate and up) and 5 h + 2 f of
    gradients a layer; those of weights are a few for each position.
    compiled: with the pieces of `mpadam.model.compiled`.
    """
    traffic = COMPILED if compiled else EAGER
    h, f, vocab_size = shape.model.hidden_size, shape.model.intermediate_size, shape.vocab_size
    layer = traffic.hidden * h + traffic.intermediate * f
    casts = 0.0 if backend is None else traffic.cast[backend] * (8 * h + 3 * f)
    positions_of_a_chunk = CHUNK_BYTES / (4 * vocab_size)
    loss = vocab_size * (traffic.logit + LOSS_BYTES_PER_HEAD_WEIGHT * h / positions_of_a_chunk)
    return shape.model.layers * (layer + casts) + loss


def pass_seconds(shape: Shape, backend: str | None, gpu: Gpu, *, compiled: bool) -> float:
    """Seconds of forward and backward pass for each position on one GPU: a roofline, products and bytes one after the
    other. `emulated` multiplies in bf16, and so does a GPU without FP8 products."""
    bf16, share, flops = gpu.peak["bf16"], shape.size_class.products, shape.flops
    in_fp8 = backend in ("transformer_engine", "native") and "fp8" in gpu.peak
    projections = flops.projections / ((gpu.peak["fp8"] * FP8_SHARE if in_fp8 else bf16) * share)
    rest = flops.head / (bf16 * HEAD_SHARE) + flops.attention / (bf16 * ATTENTION_SHARE)
    moving = elementwise_bytes(shape, backend, compiled=compiled) / (gpu.bandwidth * BANDWIDTH_SHARE)
    return BACKWARD_AND_FORWARD * (projections + rest) + moving


def gpu_step_seconds(
    shape: Shape, regime: RegimeConfig, name: OptimizerName, training: TrainingConfig, *, gpu: Gpu, gpus: int
) -> float:
    """Seconds of one update on `gpus` GPUs: the passes, then the bytes of the optimizer."""
    positions = training.global_batch_size * shape.sequence_length
    speed = gpus * (DATA_PARALLEL_EFFICIENCY if gpus > 1 else 1.0)
    compiled = training.compile is not False  # `auto`: it works on the machine that the run gets
    passes = positions * pass_seconds(shape, fp8_backend(regime, training, gpu), gpu, compiled=compiled) / speed
    optimizer = weight_bytes(shape, regime, name, training).step / (gpu.bandwidth * card_of(regime.masters).bandwidth)
    return passes + optimizer


def utilisation(shape: Shape, training: TrainingConfig, step_seconds: float, *, gpu: Gpu, gpus: int) -> float:
    """Share of the GPUs' bf16 peak that a step of that length makes use of (MFU)."""
    positions = training.global_batch_size * shape.sequence_length
    return positions * shape.flops.training / (step_seconds * gpus * gpu.peak["bf16"])


def cpu_step_seconds(shape: Shape, regime: RegimeConfig, training: TrainingConfig) -> float:
    """Seconds of one update on the CPU."""
    positions = training.global_batch_size * shape.sequence_length
    return positions * shape.flops.training / (training.threads * CPU_RATE[regime.compute])
