"""Every number of the cost model that is neither in the configuration nor measured, with its source. Data only.

Shares of peaks and CPU rates are guesses on the careful side, made before any run; runs that have finished replace them
(`mpadam.plan.jobs`). Bytes are counted. docs/costs.md explains how they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """peak: dense tensor-core FLOP/s by input format, those that it has; bandwidth: bytes/s; memory: bytes."""

    title: str
    peak: Mapping[str, float]
    bandwidth: float
    memory: float


#: NVIDIA's data sheets, SXM boards, without sparsity. NVFP4 masters are storage: their products run in bf16 or FP8.
GPUS: Mapping[str, Gpu] = {
    "h100": Gpu("H100 SXM", {"bf16": 989e12, "fp8": 1979e12}, bandwidth=3.35e12, memory=80e9),
    "h200": Gpu("H200 SXM", {"bf16": 989e12, "fp8": 1979e12}, bandwidth=4.8e12, memory=141e9),
    "a100": Gpu("A100 SXM", {"bf16": 312e12}, bandwidth=2.04e12, memory=80e9),
}
#: Assumed where it is not known which GPU a job gets, so that its time limit is long enough for any of these.
SLOWEST_GPU = "a100"


@dataclass(frozen=True)
class SizeClass:
    """What is assumed of models with at most `parameters` parameters.

    products: share of the bf16 peak that the projections reach, since small matrices fill a GPU badly.
    gpus: for one run, before the batch limits it.
    """

    parameters: float
    products: float
    gpus: int


SIZE_CLASSES = (
    SizeClass(80e6, products=0.45, gpus=1),
    SizeClass(200e6, products=0.55, gpus=1),
    SizeClass(500e6, products=0.62, gpus=4),
    SizeClass(float("inf"), products=0.65, gpus=8),
)

#: Share of the bf16 peak that the head and the attention reach; attention is counted in full, and causal kernels skip
#: half of it.
HEAD_SHARE = 0.6
ATTENTION_SHARE = 0.43
#: What of a product's share of the bf16 peak is left of the FP8 peak, which is twice as high: 1.5 times the speed.
FP8_SHARE = 0.75
#: Share of the memory bandwidth that elementwise work reaches.
BANDWIDTH_SHARE = 0.85


@dataclass(frozen=True)
class Traffic:
    """Bytes that elementwise work, forward and backward, reads and writes for each position.

    hidden, intermediate: of a layer, for each of its units (norms, rotary embedding, residuals; SwiGLU).
    logit: of the loss, for each logit.
    cast: of casting one value to FP8, by backend; the transposes that `native` products want are in it. Transformer
        Engine, from its kernels: 2 read, 1 and its transpose written, and query, key and value, gate and up each cast
        the input that they share.
    """

    hidden: float
    intermediate: float
    logit: float
    cast: Mapping[str, float]


#: Counted operation by operation: `training.compile: false` (tests/unit/test_plan_count.py).
EAGER = Traffic(410.0, 28.0, 54.0, {"transformer_engine": 5.0, "native": 54.0, "emulated": 68.0})
#: With compiled pieces, lowered for an H100 (benchmarks/step_count.py); a row of logits read again counts again.
COMPILED = Traffic(74.0, 16.0, 8.0, {"transformer_engine": 5.0, "native": 6.4, "emulated": 68.0})
#: Of the loss, for each weight of the head and chunk of positions, whose gradients are added up.
LOSS_BYTES_PER_HEAD_WEIGHT = 10.0
#: Backend that is assumed for `fp8_backend: auto` on a GPU with FP8 products: it takes longer than Transformer Engine.
AUTO_BACKEND = "native"

#: Several GPUs: what remains of each one's speed with the sum of gradients.
DATA_PARALLEL_EFFICIENCY = 0.93

#: FLOP/s of one CPU thread in forward and backward, by compute; FP8 is emulated there (cast, scale, bf16 product). A
#: server core with bf16 instructions reached 5e10 to 8e10 on the smoke study's models, one without them will not.
CPU_RATE: Mapping[str, float] = {"bf16": 2.5e10, "fp8": 1.5e10}

#: Seconds of a job before its first step: interpreter, imports, model, data; on a GPU also compilation.
START_UP_SECONDS: Mapping[str, float] = {"cpu": 8.0, "cuda": 90.0}

#: Bytes a GPU holds besides tensors: CUDA context, cuBLAS workspaces, what the allocator cannot use.
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

#: Text bytes per token: a conservative guess for English and 32,000 pieces (more tokens, larger files).
BYTES_PER_TOKEN = 4.0

#: Share of the documents left over for those that are empty or equal a validation document.
SPARE_DOCUMENTS = 0.005
