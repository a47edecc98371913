"""Writes from outside, reload_weights, shadows told apart by one rounding, and sharded blocks."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.distributed as dist
from stores import write
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from mpadam import AdamW, MPlusAdam
from mpadam.numerics import Fp8Blocks, get_format
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.store import StorePlan, WeightStore


def pair() -> tuple[nn.Parameter, nn.Parameter]:
    values = torch.linspace(-0.1, 0.1, 96).reshape(2, 48).to(torch.bfloat16)
    return nn.Parameter(values.clone()), nn.Parameter(values.clone())


def train(optimizer: LowPrecisionOptimizer, steps: int = 3) -> None:
    for t in range(steps):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad = torch.full_like(p, math.cos(t) * 0.01)
        optimizer.step()


def kept(optimizer: LowPrecisionOptimizer, p: Tensor) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in optimizer.store_of(p).tensors.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


KEPT = [("fp32", "nearest"), ("fp8_e4m3", "kahan"), ("bf16", "kahan"), ("nvfp4_sticky", "kahan")]


@pytest.mark.parametrize(("weight_format", "write_back"), KEPT)
def test_reloading_takes_only_what_was_written(weight_format: str, write_back: str) -> None:
    p, q = pair()
    optimizer = AdamW([p, q], lr=1e-5, weight_format=weight_format, write_back=write_back)
    train(optimizer)
    written, still = kept(optimizer, p), kept(optimizer, q)
    optimizer.reload_weights()
    assert same(written, kept(optimizer, p))
    with torch.no_grad():
        p.mul_(0.5)
    optimizer.reload_weights()
    assert same(still, kept(optimizer, q))
    assert not same(written, kept(optimizer, p))
    optimizer.reload_weights({q: torch.zeros(2, 48)})
    assert not optimizer.store_of(q).read().any()
    assert optimizer.store_of(p).read().any()


def test_reloading_refuses_before_it_changes_anything() -> None:
    p, q = pair()
    optimizer = AdamW([p, q], weight_format="fp32")
    before = kept(optimizer, p)
    for values, message in (
        ({p: torch.zeros(2, 48), q: torch.zeros(48)}, r"got \(48,\) for a parameter of shape \(2, 48\)"),
        ({p: torch.zeros(2, 48), torch.zeros(2): torch.zeros(2)}, "no parameter that this optimizer trains"),
        ({p: torch.zeros(2, 48), "q": torch.zeros(2)}, "'q' as a key"),
        ({p: torch.zeros(2, 48), q: 1.0}, "got 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizer.reload_weights(values)  # type: ignore[arg-type]
        assert same(before, kept(optimizer, p))


def test_a_carry_is_not_added_to_a_weight_that_was_written_from_outside() -> None:
    p, q = pair()
    optimizer = AdamW([p, q], lr=1e-5, weight_format="bf16", write_back="kahan")
    with torch.no_grad():
        p.mul_(1.0)
    train(optimizer)  # a carry of zeros belongs to any weight
    assert optimizer.state[p]["carry"].any()
    with torch.no_grad():
        p.mul_(0.5)
    before = p.detach().clone(), q.detach().clone()
    with pytest.raises(ValueError, match=r"its Kahan carry .* call optimizer.reload_weights\(\)"):
        train(optimizer, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, (p, q), strict=True))
    optimizer.reload_weights()
    assert not optimizer.state[p]["carry"].any()
    assert optimizer.state[q]["carry"].any()
    train(optimizer)


@pytest.mark.parametrize("model_first", [True, False])
def test_a_weight_may_be_loaded_before_or_after_its_carry(model_first: bool) -> None:
    """The model's checkpoint holds the weight, the optimizer's the carry; then they go on as one."""
    ends = []
    for resumed in (False, True):
        p, q = pair()
        optimizer = AdamW([p, q], lr=1e-5, weight_format="bf16", write_back="kahan")
        train(optimizer)
        if resumed:
            saved, weights = copy.deepcopy(optimizer.state_dict()), [p.detach().clone(), q.detach().clone()]
            p, q = pair()
            optimizer = AdamW([p, q], lr=1e-5, weight_format="bf16", write_back="kahan")
            train(optimizer, 1)
            for load_model in (model_first, not model_first):
                if load_model:
                    with torch.no_grad():
                        p.copy_(weights[0])
                        q.copy_(weights[1])
                else:
                    optimizer.load_state_dict(saved)
        train(optimizer, 5)
        ends.append((p.detach().clone(), optimizer.state[p]["carry"].clone()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_nan_in_a_copy_is_no_write() -> None:
    p, _ = pair()
    optimizer = AdamW([p], weight_format="fp8_e4m3")
    p.grad = torch.full_like(p, math.nan)
    optimizer.step()
    assert p.isnan().all()
    with torch.no_grad():
        p.copy_(p.detach().clone())
    optimizer.step()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rate_of_zero_is_no_step_for_any_gradient(compiled: bool) -> None:
    """w g, or its square, overflows where g does not; tensors are the rates of a compiled step."""
    from mpadam.optim.card import Constants, Rates
    from mpadam.optim.compiled import scalar_tensor
    from mpadam.optim.rules import RULES

    w, g, c = torch.tensor([10.0, -1e3]), torch.tensor([1e38, 3e38]), Constants()
    rates = Rates(1e-3, 0.0, 0.1, 1 - c.beta2)
    if compiled:
        rates = Rates(*scalar_tensor(rates).unbind())
    zero = {name: torch.zeros(2) for name in ("m", "v", "v_e")}
    steps = [RULES[rule].step(w, g, zero, c, rates, projection=None)[0].delta for rule in ("adamw", "m-plus-adam")]
    assert steps[0].isfinite().all()
    assert torch.equal(*steps)


# -- shadows ----------------------------------------------------------------------------------------------------------


def shadowed(shadow: str, start: float) -> WeightStore:
    plan = StorePlan(get_format("fp8_e5m2"), shadow=shadow, shadow_dtype=torch.bfloat16)
    store = WeightStore(plan, torch.zeros(1, 2), {})
    store.initialise(torch.tensor([[start, 0.0]]))
    return store


def test_codes_come_from_the_persistent_shadow_as_it_is_kept() -> None:
    """1.75 + 0.125 - 2^-12 lies below the tie 1.875 of e5m2, and its bf16 shadow on it: to even, 2."""
    store = shadowed("persistent", 1.75)
    write(store, store.read(), torch.tensor([[0.125 - 2.0**-12, 0.0]]), 1)
    assert store.state["shadow"][0, 0] == 1.875
    assert store.param[0, 0] == 2.0


def test_a_refreshed_shadow_starts_from_its_own_dtype() -> None:
    """The decoded weight is rounded to bf16 before the step is added: a float16 scale gives it more digits."""
    fmt = Fp8Blocks("e4m3", power_of_two_scale=False)
    plan = StorePlan(fmt, shadow="refreshed", shadow_dtype=torch.bfloat16)
    moved = 0
    for start in torch.linspace(1.0, 2.0, 97).tolist():
        store = WeightStore(plan, torch.zeros(1, 1), {})
        store.initialise(torch.tensor([[start]]))
        w = store.read()
        step = (w.to(torch.bfloat16).float() - w).neg() / 2 + 2.0**-9
        target = (w.to(torch.bfloat16).float() + step).to(torch.bfloat16).float()
        moved += int(not torch.equal(target, (w + step).to(torch.bfloat16).float()))
        expected = fmt.decode(fmt.encode(target))
        write(store, w, step, 1)
        assert torch.equal(store.read(), expected)
    assert moved > 0  # cases that tell the two apart


# -- shards -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_ranks():
    """This process as rank 0 of two; nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


ROWS, TILES = Fp8Blocks("e5m2"), Fp8Blocks("e5m2", block_size=8, block_rows=8)


@pytest.mark.parametrize(
    ("weight_format", "placement", "fits"),
    [
        (ROWS, Shard(0), True),
        (ROWS, Shard(-1), False),
        (ROWS, Shard(1), False),
        (ROWS, Replicate(), True),
        (TILES, Shard(0), False),
        (TILES, Shard(1), False),
        (TILES, Replicate(), True),
        ("bf16", Shard(1), True),
    ],
)
def test_blocks_and_tiles_that_a_sharding_cuts_are_refused(two_ranks, weight_format, placement, fits: bool) -> None:
    local = torch.ones(6, 16, dtype=torch.bfloat16)
    p = nn.Parameter(DTensor.from_local(local, two_ranks, [placement], run_check=False))
    if fits:
        MPlusAdam([p], weight_format=weight_format)
        return
    with pytest.raises(ValueError, match=r"blocks or tiles cut by the sharding: .* \(block_rows = 1\)"):
        MPlusAdam([p], weight_format=weight_format)
