"""Roles of parameters by the module that owns them: what decays, what is a projection, which layer is the head."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from mpadam import AdamW, MPlusAdam
from mpadam.numerics import Fp8Blocks
from mpadam.optim.groups import listing, parameter_groups


class HouseRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 8))


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.table = nn.Parameter(torch.ones(4, 8)), nn.Parameter(torch.ones(4, 8))


def roles(model: nn.Module, **options: object) -> dict[str, str]:
    groups = parameter_groups(model, weight_format="fp8_e5m2", **options)  # type: ignore[arg-type]
    return {name: group["role"] for group in groups for name, _ in group["params"]}


@pytest.mark.parametrize("norm", [nn.LayerNorm((4, 8)), nn.LayerNorm(4), nn.BatchNorm2d(4), HouseRMSNorm()])
def test_norms_of_any_shape_never_decay_whatever_the_optimizer_does(norm: nn.Module) -> None:
    """By the defaults of M+Adam, whose second decay is not zero either: with zero gradients nothing moves."""
    optimizer = MPlusAdam(parameter_groups(norm, weight_format="fp32"), lr=0.1, lr_mult=0.1)
    before = [p.detach().clone() for p in norm.parameters()]
    for _ in range(3):
        for p in norm.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, norm.parameters(), strict=True))


def test_roles_follow_the_module() -> None:
    assert roles(Conv1D(6, 4)) == {"weight": "projection", "bias": "norm"}
    assert roles(nn.EmbeddingBag(5, 4)) == {"weight": "embedding"}
    assert roles(nn.MultiheadAttention(8, 2, add_bias_kv=True)) == {
        "in_proj_weight": "projection", "out_proj.weight": "projection",
        "in_proj_bias": "norm", "out_proj.bias": "norm", "bias_k": "norm", "bias_v": "norm",
    }  # fmt: skip
    assert {roles(nn.MultiheadAttention(8, 2, kdim=4))[f"{x}_proj_weight"] for x in "qkv"} == {"projection"}
    assert roles(Biased()) == {"bias": "norm", "table": "other"}


def test_a_head_under_another_name_can_be_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 9, bias=False))
    assert roles(model) == {"0.weight": "projection", "1.weight": "projection"}
    assert roles(model, head=model[1]) == {"0.weight": "projection", "1.weight": "head"}


def test_the_listing_shows_what_is_other_and_which_decay_is_on() -> None:
    model = Biased()
    rows = {row.name: row for row in listing(model, parameter_groups(model, weight_format="fp8_e5m2"))}
    assert (rows["table"].role, rows["table"].weight_format) == ("other", "bf16")

    layer = nn.Linear(4, 4, bias=False)
    for options, decays in (
        ({"weight_decay": 0.0}, True),  # the other decay is M+Adam's default
        ({"weight_decay": 0.0, "weight_decay_mult": 0.0}, False),
        ({"weight_decay_mult": 0.0}, True),
    ):
        groups = parameter_groups(layer, weight_format=Fp8Blocks(block_size=4), **options)
        for shown in (groups, MPlusAdam(groups).param_groups):
            (row,) = listing(layer, shown)
            assert row.decays is decays
            assert row.weight_format == "fp8_e5m2-b4"
    (row,) = listing(layer, AdamW(parameter_groups(layer, weight_decay=0.0)).param_groups)
    assert row.decays is False
