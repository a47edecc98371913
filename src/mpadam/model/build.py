"""Builds the LLaMA of a run: Transformers' own module, weights drawn here from the run's initialisation stream.

Each tensor has its own generator, seeded by the run's seed and the tensor's name, and is drawn in float32 on the CPU
and then cast. So the initial weights are the same bits on every device, in every order of construction, whatever the
state of the global generators, and regimes of one seed start from the same numbers.
"""

import torch
from torch import Tensor, nn
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRotaryEmbedding

from mpadam.model.layers import attend_to_whole_rows
from mpadam.study.spec import ModelSpec
from mpadam.study.streams import stream_seed

INITIAL_STD = 0.02
COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp32": torch.float32}


def llama_config(spec: ModelSpec) -> LlamaConfig:
    """Transformers' configuration of a model (docs/algorithm.md, "Models")."""
    return LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        max_position_embeddings=spec.sequence_length,
        rms_norm_eps=1e-6,
        initializer_range=INITIAL_STD,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=False,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=spec.attention,  # type: ignore[call-arg]
    )


def build_model(
    spec: ModelSpec, *, seed: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
) -> LlamaForCausalLM:
    """The model of a run, ready to train.

    seed: the run's seed.
    dtype: of all parameters. Buffers keep theirs: rotary frequencies rounded to bf16 would move every position.
    """
    config = llama_config(spec)
    with torch.device("meta"):  # Transformers would draw initial weights from the global generator
        model = LlamaForCausalLM(config)
    model.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
    for name, parameter in list(model.named_parameters()):
        module = model.get_submodule(name.rpartition(".")[0])
        value = initial_value(name, parameter.shape, seed=seed).to(device=device, dtype=dtype)
        setattr(module, name.rpartition(".")[2], nn.Parameter(value))
    attend_to_whole_rows(model)
    return model.train()


def initial_value(name: str, shape: torch.Size, *, seed: int) -> Tensor:
    """Initial float32 weights of a parameter: N(0, 0.02) for matrices, 1 for the weight of a norm."""
    if len(shape) == 1:
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(stream_seed(seed, "initialisation", name))
    return torch.empty(shape).normal_(0.0, INITIAL_STD, generator=generator)
