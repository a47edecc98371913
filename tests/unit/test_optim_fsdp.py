"""FSDP2 on two ranks, as its users drive it: offloading, DCP, the exchange of parameters that Accelerate makes."""

from __future__ import annotations

import copy
import io
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from training_ranks import run_ranks

from mpadam import AdamW, MPlusAdam
from mpadam.optim.base import LowPrecisionOptimizer

KINDS: dict[str, dict[str, Any]] = {
    "weight": {},
    "kahan": {"weight_format": "bf16", "write_back": "kahan"},
    "master": {"weight_format": "fp32"},
    "codes": {"weight_format": "fp8_e4m3", "write_back": "stochastic"},
}


class Layers(nn.Module):
    """Two layers that differ in their values and in what they compute, in the order of `names`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        values = {name: torch.randn(5, 16, generator=generator) * 0.1 for name in sorted(names)}
        for name in names:
            layer = nn.Linear(16, 5, bias=False)  # 5 rows: ranks hold 3 and 2
            layer.weight = nn.Parameter(values[name].to(torch.bfloat16))
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) ** 2).sum() + (self.k(x) ** 3).sum()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for t in range(first, last + 1):
        model(torch.randn(4, 16, generator=torch.Generator().manual_seed(t)).to(torch.bfloat16)).backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {n: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for n, p in model.named_parameters()}


def sharded(options: dict[str, Any], names: tuple[str, ...] = ("q", "k")) -> tuple[nn.Module, LowPrecisionOptimizer]:
    model = Layers(names)
    fully_shard(model)
    return model, MPlusAdam(model.named_parameters(), lr=1e-2, lr_mult=1e-2, seed=3, **options)


def stored(model: nn.Module, optimizer: LowPrecisionOptimizer) -> dict[str, Tensor]:
    return {n: optimizer.store_of(p).read() for n, p in model.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_n2_what_offloading_does_leaves_no_stale_copy_behind() -> None:
    """`double()` and `float()`, or a move of the local tensors, give every parameter another local tensor."""

    def work(ranks) -> list[str]:
        wrong = []
        for kind, options in KINDS.items():
            ends = []
            for moved in (False, True):
                model, optimizer = sharded(options)
                steps(model, optimizer, 1, 2)
                if moved:
                    model.double()
                    model.to(torch.bfloat16)
                    with torch.no_grad():
                        for p in model.parameters():
                            p.data = p.data.clone()
                steps(model, optimizer, 3, 4)
                ends.append(whole(model) | stored(model, optimizer))
            if not same(*ends):
                wrong.append(kind)
        return wrong

    assert run_ranks(2, work) == [[], []]


def test_n2_a_write_to_the_new_local_tensor_is_noticed() -> None:
    def work(ranks) -> str:
        model, optimizer = sharded({"weight_format": "fp32"})
        steps(model, optimizer, 1, 1)
        model.double()
        model.to(torch.bfloat16)
        with torch.no_grad():
            next(model.parameters()).mul_(0.5)
        try:
            steps(model, optimizer, 2, 2)
        except ValueError as error:
            return str(error)
        return ""

    assert all("was written from outside" in message for message in run_ranks(2, work))


@pytest.mark.parametrize("full", [False, True])
def test_dcp_saves_and_loads_every_shard_under_its_name(full: bool) -> None:
    """Plain tensors would be copies of one for DCP, and each rank would get the first one's."""

    def work(ranks) -> list[str]:
        wrong, options = [], StateDictOptions(full_state_dict=True) if full else StateDictOptions()
        for kind, chosen in KINDS.items():
            model, optimizer = sharded(chosen)
            steps(model, optimizer, 1, 3)
            folder = [tempfile.mkdtemp() if ranks.rank == 0 else None]
            dist.broadcast_object_list(folder)
            weights, states = get_state_dict(model, optimizer, options=options)
            other, resumed = sharded(chosen, names=("k", "q"))
            steps(other, resumed, 1, 1)
            if full:
                set_state_dict(
                    other, resumed, model_state_dict=copy.deepcopy(weights), optim_state_dict=copy.deepcopy(states),
                    options=options,
                )  # fmt: skip
            else:
                dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder[0])
                weights, states = get_state_dict(other, resumed)
                dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder[0])
                set_state_dict(other, resumed, model_state_dict=weights, optim_state_dict=states)
            for m, o in ((model, optimizer), (other, resumed)):
                steps(m, o, 4, 5)
            if not same(whole(model) | stored(model, optimizer), whole(other) | stored(other, resumed)):
                wrong.append(kind)
        return wrong

    assert run_ranks(2, work) == [[], []]


def test_each_rank_may_save_its_own_file() -> None:
    def work(ranks) -> bool:
        model, optimizer = sharded(KINDS["codes"])
        steps(model, optimizer, 1, 2)
        buffer = io.BytesIO()
        torch.save(optimizer.state_dict(), buffer)
        buffer.seek(0)
        model_again, resumed = sharded(KINDS["codes"])
        resumed.load_state_dict(torch.load(buffer, weights_only=True))
        for m, o in ((model, optimizer), (model_again, resumed)):
            steps(m, o, 3, 3)
        return same(whole(model), whole(model_again))

    assert run_ranks(2, work) == [True, True]


def test_a_gradient_that_is_placed_otherwise_than_its_parameter_is_placed_anew() -> None:
    def work(ranks) -> bool:
        mesh = init_device_mesh("cpu", (ranks.size,))
        ends = []
        for partial in (False, True):
            p = nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
            optimizer = AdamW([p], lr=0.1, betas=(0.0, 0.0), eps=0.5)
            grad = torch.arange(12.0).reshape(4, 3)
            p.grad = (
                DTensor.from_local(grad / 2, mesh, [Partial()])
                if partial
                else distribute_tensor(grad, mesh, [Shard(0)])
            )
            optimizer.step()
            ends.append(p.full_tensor())
        return torch.equal(*ends)

    assert run_ranks(2, work) == [True, True]


def test_n3_accelerate_exchanges_the_parameters_of_an_optimizer_that_has_not_stepped() -> None:
    """It shards the model and puts the new parameters into the groups, and moves no state."""

    def work(ranks) -> Any:
        said = []
        for kind, options in KINDS.items():
            plain = Layers(("q", "k"))
            optimizer = MPlusAdam(plain.named_parameters(), lr=1e-2, lr_mult=1e-2, seed=3, **options)
            fully_shard(plain)
            optimizer.param_groups[0]["params"] = list(plain.parameters())
            try:
                steps(plain, optimizer, 1, 2)
            except ValueError as error:
                said.append((kind, str(error)[:60]))
                continue
            model, other = sharded(options)
            steps(model, other, 1, 2)
            said.append((kind, same(whole(plain), whole(model))))
            assert len(optimizer.state) == 2
        return said

    for said in run_ranks(2, work):
        assert said == [(kind, True) for kind in KINDS]
