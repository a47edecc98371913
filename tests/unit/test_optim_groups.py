"""Parameter groups: what is stored how, what decays, and that every optimizer gets the same (O11)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from mpadam.optim.groups import listing, parameter_groups
from mpadam.optim.registry import build_optimizer

NORMS = {"model.norm.weight"} | {
    f"model.layers.{layer}.{norm}.weight"
    for layer in (0, 1)
    for norm in ("input_layernorm", "post_attention_layernorm")
}
PROJECTIONS = {
    f"model.layers.{layer}.{name}.weight"
    for layer in (0, 1)
    for name in (
        *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    )
}


def llama(*, tied: bool = False, bias: bool = False) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=tied, attention_bias=bias,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.bfloat16)


def names_by_role(groups: list[dict]) -> dict[str, set[str]]:
    return {group["role"]: {name for name, _ in group["params"]} for group in groups}


def test_o11_every_parameter_is_in_exactly_one_group() -> None:
    model = llama()
    groups = parameter_groups(model, weight_format="fp8_e5m2")
    names = [name for group in groups for name, _ in group["params"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert names_by_role(groups) == {
        "projection": PROJECTIONS,
        "embedding": {"model.embed_tokens.weight"},
        "head": {"lm_head.weight"},
        "norm": NORMS,
    }


def test_o11_a_tied_weight_appears_once_as_the_embedding() -> None:
    model = llama(tied=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    groups = parameter_groups(model, weight_format="fp8_e5m2")
    assert names_by_role(groups) == {
        "projection": PROJECTIONS,
        "embedding": {"model.embed_tokens.weight"},
        "norm": NORMS,
    }
    (row,) = (row for row in listing(model, groups) if row.role == "embedding")
    assert row.tied == ("lm_head.weight",)


def test_o11_norms_and_biases_never_decay_and_the_embedding_as_told() -> None:
    model = llama(bias=True)
    for embedding_decay in (True, False):
        groups = parameter_groups(
            model, weight_format="bf16", weight_decay=0.3, weight_decay_mult=0.2, embedding_decay=embedding_decay
        )
        decays = {g["role"]: (g["weight_decay"], g["weight_decay_mult"]) for g in groups}
        assert decays["projection"] == decays["head"] == (0.3, 0.2)
        assert decays["norm"] == (0.0, 0.0)
        assert decays["embedding"] == ((0.3, 0.2) if embedding_decay else (0.0, 0.0))
    assert any(name.endswith("q_proj.bias") for name in names_by_role(groups)["norm"])


@pytest.mark.parametrize("name", ["adamw", "madam", "m-plus-adam", "m-plus-adam-apollo-e", "additive-twin-kahan"])
def test_o11_every_optimizer_gets_the_same_groups(name: str) -> None:
    def described(name: str) -> list[tuple]:
        model = llama()
        optimizer = build_optimizer(model, name, {}, masters="fp8", state_dtype="bf16")
        ids = {optimizer.state[p]["id"]: n for n, p in model.named_parameters()}
        groups = [(g["role"], g["param_names"], g["weight_format"]) for g in optimizer.param_groups]
        still = [g["role"] for g in optimizer.param_groups if g["weight_decay"] == 0.0]
        return [groups, still, sorted(ids.items())]

    assert described(name) == described("adamw")


def test_projections_take_the_low_format_and_all_else_bf16_or_fp32() -> None:
    model = llama()
    formats = {row.name: row.weight_format for row in listing(model, parameter_groups(model, weight_format="nvfp4"))}
    assert {name for name, fmt in formats.items() if fmt == "nvfp4"} == PROJECTIONS
    assert {fmt for name, fmt in formats.items() if name not in PROJECTIONS} == {"bf16"}
    for weight_format in ("fp32", "bf16"):
        groups = parameter_groups(model, weight_format=weight_format)
        assert {group["weight_format"] for group in groups} == {weight_format}


def test_the_listing_says_what_is_stored_how() -> None:
    model = llama()
    optimizer = build_optimizer(model, "adamw", {}, masters="fp8")
    rows = {row.name: row for row in listing(model, optimizer.param_groups)}
    assert len(rows) == len(list(model.parameters()))
    assert rows["model.layers.0.mlp.up_proj.weight"][1:] == (
        (48, 32), "projection", "fp8_e5m2", "bfloat16", True, (),
    )  # fmt: skip
    assert rows["model.norm.weight"][1:] == ((32,), "norm", "bf16", "bfloat16", False, ())


def test_the_head_of_a_plain_model_is_known_by_its_name() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.proj, self.conv = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Conv1d(4, 4, 3)
            self.lm_head = nn.Linear(4, 8, bias=False)

    groups = names_by_role(parameter_groups(Plain(), weight_format="fp8_e4m3"))
    assert groups == {
        "projection": {"proj.weight"},
        "embedding": {"embed.weight"},
        "head": {"lm_head.weight"},
        "other": {"conv.weight"},
        "norm": {"proj.bias", "conv.bias"},
    }


def test_frozen_parameters_are_left_alone() -> None:
    model = llama()
    model.model.embed_tokens.requires_grad_(False)
    assert "embedding" not in names_by_role(parameter_groups(model, weight_format="bf16"))


def test_an_apollo_optimizer_compresses_projections_or_every_matrix() -> None:
    for scope, expected in (("projections", PROJECTIONS), ("all_2d", None)):
        model = llama()
        optimizer = build_optimizer(model, "m-plus-adam-apollo-e", {}, masters="bf16", apollo_scope=scope)
        compressed = {name for name, p in model.named_parameters() if "v_r" in optimizer.state[p]}
        assert compressed == (expected or PROJECTIONS | {"model.embed_tokens.weight", "lm_head.weight"})


def test_masters_are_words_of_a_regime_or_formats() -> None:
    model = nn.Linear(4, 4, bias=False)
    for masters, name in (("fp8", "fp8_e5m2"), ("fp8e4m3", "fp8_e4m3"), ("nvfp4s", "nvfp4_sticky"), ("bf16", "bf16")):
        assert build_optimizer(model, "adamw", {}, masters=masters).param_groups[0]["weight_format"] == name
    with pytest.raises(ValueError, match="masters = 'fp9': give one of fp32, bf16, fp8"):
        build_optimizer(model, "adamw", {}, masters="fp9")


def test_hyperparameters_reach_the_groups() -> None:
    values = {"lr": 1e-3, "lr_mult": 2e-3, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.2, "max_relative_step": None}
    (group,) = build_optimizer(
        nn.Linear(4, 4, bias=False), "m-plus-adam-relative-sr", values, masters="bf16", seed=7
    ).param_groups
    got = {key: group[key] for key in ("lr", "lr_mult", "betas", "weight_decay", "max_relative_step", "seed")}
    assert got == {
        "lr": 1e-3, "lr_mult": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.2, "max_relative_step": None, "seed": 7,
    }  # fmt: skip
    assert (group["multiplicative_form"], group["write_back"]) == ("relative", "stochastic")
