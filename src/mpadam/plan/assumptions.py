"""Every number of the cost model that is neither in the configuration nor measured, with its source. Data only.

The utilisations and CPU rates are guesses on the careful side, made before any run; runs that have finished replace
them (`mpadam.plan.observed`). docs/costs.md explains how they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """peak: dense tensor-core FLOP/s by input format; bandwidth: bytes/s; memory: bytes."""

    title: str
    peak: Mapping[str, float]
    bandwidth: float
    memory: float


#: NVIDIA's data sheets, SXM boards, without sparsity. NVFP4 masters are storage: their products run in bf16 or FP8.
GPUS: Mapping[str, Gpu] = {
    "h100": Gpu("H100 SXM", {"bf16": 989e12, "fp8": 1979e12}, bandwidth=3.35e12, memory=80e9),
    "h200": Gpu("H200 SXM", {"bf16": 989e12, "fp8": 1979e12}, bandwidth=4.8e12, memory=141e9),
}
DEFAULT_GPU = "h100"


@dataclass(frozen=True)
class SizeClass:
    """What is assumed of models with at most `parameters` parameters.

    utilisation: share of the peak that forward and backward reach, by compute. Small matrices fill a GPU badly, and
        FP8 has less work for its casts: 512-wide products gain next to nothing from a peak that is twice as high.
    gpus: for one run, before the batch limits it.
    """

    parameters: float
    utilisation: Mapping[str, float]
    gpus: int


SIZE_CLASSES = (
    SizeClass(80e6, {"bf16": 0.20, "fp8": 0.12}, gpus=1),
    SizeClass(200e6, {"bf16": 0.27, "fp8": 0.17}, gpus=1),
    SizeClass(500e6, {"bf16": 0.33, "fp8": 0.24}, gpus=4),
    SizeClass(float("inf"), {"bf16": 0.40, "fp8": 0.32}, gpus=8),
)

#: Several GPUs: what remains of each one's speed beside the sum of gradients.
DATA_PARALLEL_EFFICIENCY = 0.93

#: Share of the memory bandwidth that the optimizer step reaches, by masters: block formats take several passes.
OPTIMIZER_EFFICIENCY: Mapping[str, float] = {
    "fp32": 0.6, "bf16": 0.6, "fp8": 0.3, "fp8e4m3": 0.3, "nvfp4": 0.2, "nvfp4s": 0.25,
}  # fmt: skip

#: FLOP/s of one CPU thread in forward and backward, by compute; FP8 is emulated there (cast, scale, bf16 product). A
#: server core with bf16 instructions reached 5e10 to 8e10 on the smoke study's models, one without them will not.
CPU_RATE: Mapping[str, float] = {"bf16": 2.5e10, "fp8": 1.5e10}

#: Seconds of a job before its first step: interpreter, imports, model, data; on a GPU also compilation.
START_UP_SECONDS: Mapping[str, float] = {"cpu": 8.0, "cuda": 90.0}

#: Bytes a weight takes in its store, scales included: one byte for each FP8 block of 256 (a power of two; an FP16 scale
#: takes two) and for each NVFP4 block of 16 (e4m3).
STORED_BYTES: Mapping[str, float] = {
    "fp32": 4.0, "bf16": 2.0, "fp8": 1 + 1 / 256, "fp8e4m3": 1 + 1 / 256, "nvfp4": 0.5 + 1 / 16, "nvfp4s": 0.5 + 1 / 16,
}  # fmt: skip

#: Bytes a GPU holds beside tensors: CUDA context, cuBLAS workspaces, what the allocator cannot use.
GPU_OVERHEAD_BYTES = 2e9

#: A job's Slurm time limit: estimate times head-room, and half as much again with each further attempt.
HEAD_ROOM = 1.5
GROWTH_PER_ATTEMPT = 0.5
RUNTIME_ROUND_MINUTES = 5

#: Vocabulary assumed for a tokenizer folder before it was looked at (the paper's).
VOCABULARY = 32_000


@dataclass(frozen=True)
class Corpus:
    """A collection of .json.gz shards. bytes: of those files; text_bytes: of what is in them.

    least_tokens: of a document, on average, EOS left out: what `pack` can count on.
    """

    train_documents: int
    train_shards: int
    train_bytes: float
    train_text_bytes: float
    validation_documents: int
    validation_shards: int
    validation_bytes: float
    least_tokens: float

    @property
    def documents_per_shard(self) -> float:
        return self.train_documents / self.train_shards

    @property
    def bytes_per_shard(self) -> float:
        return self.train_bytes / self.train_shards


#: allenai/c4, config `en`. Documents, 828.59 and 0.83 GB of text, and 326.78 GB of files in all: the dataset's card on
#: the hub, which does not split the files' bytes, so they are split here as the text is. Tokens: the 156e9 of Dodge et
#: al. 2021, Table 1, who count words and punctuation; subword tokenizers make more.
C4_EN = Corpus(
    train_documents=364_868_892,
    train_shards=1024,
    train_bytes=326.45e9,
    train_text_bytes=828.59e9,
    validation_documents=364_608,
    validation_shards=8,
    validation_bytes=0.325e9,
    least_tokens=156e9 / 364_868_892,
)

#: Text bytes a token: a guess on the careful side for English and 32,000 pieces (more tokens, larger files).
BYTES_PER_TOKEN = 4.0

#: Share of the documents left over for those that are empty or equal a validation document.
SPARE_DOCUMENTS = 0.005
