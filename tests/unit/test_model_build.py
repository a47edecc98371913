"""Models: the paper's sizes, parity with Transformers, and initial weights that depend on the seed alone."""

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mpadam.llama import PAPER_SIZES
from mpadam.model.build import build_model, initial_value
from mpadam.study.config import ModelConfig
from mpadam.study.spec import ModelSpec

TINY = {"hidden_size": 32, "intermediate_size": 40, "layers": 2, "heads": 2, "vocab_size": 97, "sequence_length": 16}
PARAMETERS = {"60m": 58_073_600, "130m": 134_105_856, "350m": 367_969_280, "1b": 1_339_082_752}


def tiny(**changes: object) -> ModelSpec:
    return ModelSpec.model_validate({**TINY, "attention": "sdpa", **changes})


def plain_llama(**changes: object) -> LlamaForCausalLM:
    """The model of docs/algorithm.md, "Models", written down for Transformers directly."""
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=97,
        max_position_embeddings=16,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        **changes,
    )
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("size", PAPER_SIZES)
def test_the_papers_sizes_have_its_parameter_counts(size):
    shape = PAPER_SIZES[size]
    with torch.device("meta"):
        config = LlamaConfig(
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            vocab_size=32000,
        )
        counted = sum(p.numel() for p in LlamaForCausalLM(config).parameters())
    assert counted == PARAMETERS[size]
    assert shape.parameters() == counted
    assert ModelConfig(**vars(shape), steps_1x=1).parameters(32000) == counted


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_a_plain_transformers_model(attention, dtype):
    ours = build_model(tiny(attention=attention), seed=3, dtype=dtype)
    theirs = plain_llama(attn_implementation=attention)
    theirs.load_state_dict(ours.state_dict())
    for parameter in theirs.parameters():  # not .to(dtype), which would round the rotary frequencies too
        parameter.data = parameter.data.to(dtype)
    tokens = torch.randint(0, 97, (3, 16), generator=torch.Generator().manual_seed(0))
    assert ours.config._attn_implementation == attention
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=0, atol=0)


def test_rotary_frequencies_stay_float32_in_a_bf16_model():
    model = build_model(tiny(), seed=0, dtype=torch.bfloat16)
    head = TINY["hidden_size"] // TINY["heads"]
    expected = torch.tensor([10000.0 ** (-2 * i / head) for i in range(head // 2)])
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected)


def test_nothing_is_tied_or_biased():
    model = build_model(tiny(), seed=0)
    names = [name for name, _ in model.named_parameters()]
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert not [name for name in names if name.endswith("bias")]
    assert len(names) == 2 + 2 * 9 + 1


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(tiny(), seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = build_model(tiny(), seed=5).state_dict(), build_model(tiny(), seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_each_tensor_has_its_own_stream():
    deep = build_model(tiny(layers=3), seed=5).state_dict()
    shallow = build_model(tiny(layers=1), seed=5).state_dict()
    assert all(torch.equal(shallow[name], deep[name]) for name in shallow)
    square = [value for name, value in deep.items() if value.shape == (32, 32)]
    assert len(square) == 12
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(square, 2))


def test_matrices_are_drawn_with_deviation_0_02_and_norms_are_one():
    model = build_model(tiny(hidden_size=64, vocab_size=1000), seed=0, dtype=torch.float32)
    head = model.lm_head.weight.detach()
    assert head.std().item() == pytest.approx(0.02, rel=5 * (2 * head.numel()) ** -0.5)
    assert head.mean().item() == pytest.approx(0.0, abs=5 * 0.02 * head.numel() ** -0.5)
    norms = [p for p in model.parameters() if p.ndim == 1]
    assert len(norms) == 5
    assert all(torch.equal(p, torch.ones_like(p)) for p in norms)


def test_bf16_weights_are_the_float32_draw_rounded():
    name = "model.layers.1.mlp.up_proj.weight"
    rounded = build_model(tiny(), seed=5, dtype=torch.bfloat16).state_dict()[name]
    assert torch.equal(rounded, initial_value(name, rounded.shape, seed=5).to(torch.bfloat16))
