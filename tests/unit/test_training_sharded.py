"""Sharded parameters (DTensor) on two ranks: same bits as unsharded, and a reason where that cannot be."""

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from training_ranks import run_ranks

from mpadam import AdamW, Madam, MPlusAdam
from mpadam.optim.optimizer import AdditiveTwin

SHAPE, STEPS = (6, 40), 5
ELEMENTWISE = {
    "adamw": (AdamW, {"lr": 1e-2}),
    "m-plus-adam": (MPlusAdam, {"lr": 1e-2, "lr_mult": 1e-2}),
    "m-plus-adam-relative": (MPlusAdam, {"lr": 1e-2, "lr_mult": 1e-2, "multiplicative_form": "relative"}),
    "madam": (Madam, {"lr": 1e-2}),
    "additive-twin": (AdditiveTwin, {"lr": 1e-2, "lr_mult": 1e-2}),
}
# (format, dimension that is sharded): rows stay whole where blocks run along them
PLACED = [("fp32", 0), ("fp32", 1), ("bf16", 0), ("bf16", 1), ("fp8_e5m2", 0), ("fp8_e4m3", 0)]


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(SHAPE, generator=generator).bfloat16()
    return weight, [torch.randn(SHAPE, generator=generator).bfloat16() for _ in range(STEPS)]


def trained(rule, write_back, weight_format, place):
    """The parameter after some steps, and what its store reads; `place` makes parameter and gradients of tensors."""
    cls, rates = ELEMENTWISE[rule]
    weight, gradients = tensors(0)
    parameter = torch.nn.Parameter(place(weight))
    optimizer = cls(
        [parameter], **rates, write_back=write_back, weight_format=weight_format, state_dtype="bf16", seed=5
    )
    for gradient in gradients:
        parameter.grad = place(gradient)
        optimizer.step()
    return parameter.detach(), optimizer.store_of(parameter).read()


@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan", "eco", "eco_stochastic"])
def test_elementwise_rules_and_row_wise_formats_give_the_bits_of_the_whole_parameter(write_back):
    rules = ["adamw"] if write_back.startswith("eco") else ELEMENTWISE
    cases = [(rule, fmt, dim) for rule in rules for fmt, dim in PLACED]
    whole = {(r, f): trained(r, write_back, f, torch.clone) for r, f, _ in cases}

    def work(ranks):
        mesh = init_device_mesh("cpu", (ranks.size,))
        different = []
        for rule, fmt, dim in cases:
            local, stored = trained(rule, write_back, fmt, lambda t, dim=dim: distribute_tensor(t, mesh, [Shard(dim)]))
            assert isinstance(local, DTensor)
            assert local.to_local().numel() == local.numel() // 2
            expected, expected_store = whole[rule, fmt]
            mine = expected_store.chunk(2, dim)[ranks.rank]
            if not torch.equal(local.full_tensor(), expected) or not torch.equal(stored, mine):
                different.append((rule, fmt, dim))
        return different

    assert run_ranks(2, work) == [[], []]


REFUSED = {
    "apollo_e": (MPlusAdam, {"second_moment": "apollo_e"}, 0),
    "normalized_rho_tensor": (MPlusAdam, {"multiplicative_form": "normalized_rho_tensor"}, 0),
    "nvfp4": (AdamW, {"weight_format": "nvfp4"}, 0),
    "blocks": (AdamW, {"weight_format": "fp8_e5m2"}, 1),
}


def test_what_needs_the_whole_parameter_refuses_a_shard_and_says_why():
    def work(ranks):
        mesh, said = init_device_mesh("cpu", (ranks.size,)), {}
        for name, (cls, options, dim) in REFUSED.items():
            parameter = torch.nn.Parameter(distribute_tensor(torch.ones(6, 40).bfloat16(), mesh, [Shard(dim)]))
            try:
                cls([parameter], lr=1e-2, **options)
            except ValueError as error:
                said[name] = str(error)
        dist.barrier()
        return said

    for said in run_ranks(2, work):
        assert said.keys() == REFUSED.keys()
        for name, message in said.items():
            assert name in message
            assert "whole parameter" in message
            assert "replicate it (DDP)" in message
