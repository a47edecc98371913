"""The weight store: what a parameter is, outside writes, shadows, shards, and what is really kept in memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from stores import write
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from mpadam import AdamW, MPlusAdam
from mpadam.numerics import Fp8Blocks, get_format
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.sharding import flat_position
from mpadam.optim.store import StorePlan, WeightStore

STORED = ["fp32", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_sticky"]  # not the dtype of a bf16 parameter


def weight(*shape: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    return nn.Parameter((torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype))


def train(optimizer: LowPrecisionOptimizer, p: Tensor, first: int = 1, last: int = 3) -> None:
    for t in range(first, last + 1):
        p.grad = (torch.randn(p.shape, generator=torch.Generator().manual_seed(t)) * 1e-2).to(p.dtype)
        optimizer.step()


# -- what a parameter is ----------------------------------------------------------------------------------------------


def test_a_parameter_in_its_weight_format_is_the_weight() -> None:
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        p = weight(4, 8, dtype=dtype)
        before = p.detach().clone()
        optimizer = AdamW([p], weight_format=name)
        assert torch.equal(p, before)
        assert not any(key.startswith("weight.") for key in optimizer.state[p])
        with torch.no_grad():
            p.mul_(2.0)  # it is the weight: writing to it is fine
        train(optimizer, p)


@pytest.mark.parametrize("weight_format", STORED)
def test_else_it_is_the_decoded_copy_after_construction_and_each_update(weight_format: str) -> None:
    p = weight(4, 40)
    before = p.detach().clone()
    optimizer = AdamW([p], lr=1e-2, weight_format=weight_format)
    fmt = get_format(weight_format)
    assert torch.equal(p, fmt.decode(fmt.encode(before.float()), torch.bfloat16))
    for t in (1, 2, 3):
        train(optimizer, p, t, t)
        assert torch.equal(p, optimizer.store_of(p).read().to(torch.bfloat16))


def test_fp32_masters_keep_what_their_bf16_copy_cannot() -> None:
    """1,000 updates of -1e-5 from 1.0: no bf16 weight would move."""
    p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = AdamW([p], lr=1e-5, weight_decay=0.0, weight_format="fp32", state_dtype="fp32")
    for _ in range(1000):
        p.grad = torch.ones_like(p)
        optimizer.step()
    torch.testing.assert_close(optimizer.store_of(p).read(), torch.full((4,), 0.99), rtol=1e-4, atol=0)
    assert (p == torch.tensor(0.99).to(torch.bfloat16)).all()


@pytest.mark.parametrize("weight_format", STORED)
def test_a_write_from_outside_is_noticed(weight_format: str) -> None:
    p = weight(4, 40)
    optimizer = AdamW([p], weight_format=weight_format)
    train(optimizer, p)
    with torch.no_grad():
        p.add_(0.01)
    stored = optimizer.store_of(p).read().clone()
    with pytest.raises(ValueError, match=r"call optimizer.reload_weights\(\)"):
        train(optimizer, p)
    assert torch.equal(stored, optimizer.store_of(p).read())
    assert optimizer.state[p]["step"] == 3
    optimizer.reload_weights()
    fmt = get_format(weight_format)
    train(optimizer, p)
    assert not torch.equal(stored, optimizer.store_of(p).read())
    assert torch.equal(p, fmt.decode(fmt.encode(optimizer.store_of(p).read()), torch.bfloat16))


def test_another_storage_behind_the_parameter_is_noticed() -> None:
    p = weight(4, 40)
    optimizer = AdamW([p], weight_format="fp8_e5m2")
    p.data = p.detach() + 0.01
    with pytest.raises(ValueError, match="reload_weights"):
        train(optimizer, p)


def test_a_write_of_the_same_values_is_none() -> None:
    """Loading a model's checkpoint after the optimizer's writes what is there already."""
    p = weight(4, 40)
    optimizer = AdamW([p], weight_format="fp8_e5m2")
    with torch.no_grad():
        p.copy_(p.detach().clone())
    train(optimizer, p)


@pytest.mark.parametrize("weight_format", ["bf16", "fp32"])
def test_a_model_converted_after_the_optimizer_was_built_is_refused(weight_format: str) -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = AdamW(model.parameters(), weight_format=weight_format)
    model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="convert the model first"):
        train(optimizer, model.weight)


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight_format", "expected"),
    [
        ("fp32", 4 * 64 * 512),
        ("fp8_e4m3", 64 * 512 + 64 * 2),  # one byte per weight, a byte for each block of 256
        ("nvfp4", 64 * 512 // 2 + 64 * 32 + 4),  # half a byte, a byte for each block of 16, one float32
        ("nvfp4_sticky", 64 * 512 // 2 + 64 * 32 + 4),
        (Fp8Blocks("e5m2", power_of_two_scale=False), 64 * 512 + 2 * 64 * 2),  # float16 scales
    ],
)
def test_what_is_stored_takes_the_bytes_it_should(weight_format: object, expected: int) -> None:
    """Asked of the storages behind the optimizer's state, after an update."""
    p = weight(64, 512)
    optimizer = AdamW([p], weight_format=weight_format)
    train(optimizer, p, 1, 1)
    stored = [t for key, t in optimizer.state[p].items() if key.startswith("weight.")]
    assert sum(t.untyped_storage().nbytes() for t in stored) == expected


@pytest.mark.parametrize("weight_format", ["fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_sticky"])
@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan"])
def test_f1_zero_and_tiny_blocks_leave_zero_by_a_step(weight_format: str, write_back: str) -> None:
    """A zero tensor, a zero block among normal ones, and a tensor of 1e-40: finite, and the next steps move them."""
    mixed = torch.full((2, 512), 0.02)
    mixed[0, :256] = 0.0
    for w in (torch.zeros(2, 512), mixed, torch.full((2, 512), 1e-40)):
        p = nn.Parameter(w.clone())
        optimizer = MPlusAdam([p], lr=1e-2, weight_format=weight_format, write_back=write_back)
        assert p.isfinite().all()
        assert (p[w == 0] == 0).all()
        for _ in range(2):
            p.grad = torch.ones_like(p)
            optimizer.step()
        assert p.isfinite().all()
        assert (p < w).all()


# -- shadows ----------------------------------------------------------------------------------------------------------


def shadowed(shadow: str, shadow_dtype: str | None = None, weight_format: str = "fp8_e5m2") -> WeightStore:
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, None: torch.bfloat16}[shadow_dtype]
    store = WeightStore(
        StorePlan(get_format(weight_format), shadow=shadow, shadow_dtype=dtype),
        torch.zeros(1, 4, dtype=torch.bfloat16),
        {},
    )
    store.initialise(torch.tensor([[1.0, 0.5, 0.25, 1.75]]))
    return store


def test_a_refreshed_shadow_rounds_twice() -> None:
    """From 1.0, a step to just below the tie 1.125 of e5m2: one rounding goes down, with bf16 in between to the tie,
    hence up or to even. In float32 the shadow is as none."""
    step = torch.full((1, 4), 0.125 - 2.0**-12)
    ends = {}
    for shadow, dtype in (("none", None), ("refreshed", "fp32"), ("refreshed", "bf16")):
        store = shadowed(shadow, dtype)
        write(store, store.read(), step, 1)
        assert "shadow" not in store.state  # it does not outlive the step
        ends[shadow, dtype] = store.read()
    assert torch.equal(ends["none", None], ends["refreshed", "fp32"])
    assert ends["none", None][0, 0] == 1.0
    # 1.125 is a tie between 1.0 and 1.25; the even code is 1.0. From 1.75, 1.875 lies between 1.75 and 2.0: up.
    assert ends["refreshed", "bf16"][0].tolist() == [1.0, 0.625, 0.375, 2.0]
    assert ends["none", None][0, 3] == 1.75


@pytest.mark.parametrize("write_back", ["nearest", "stochastic"])
@pytest.mark.parametrize("weight_format", ["fp8_e4m3", "nvfp4"])
def test_a_persistent_shadow_is_a_hidden_master(weight_format: str, write_back: str) -> None:
    """Its trajectory is that of AdamW with float32 weights and the gradients of the decoded ones."""
    p, q = weight(4, 32, dtype=torch.float32), weight(4, 32, dtype=torch.float32)
    options = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    optimizer = AdamW(
        [p], weight_format=weight_format, shadow="persistent", shadow_dtype="fp32", write_back=write_back, **options
    )
    oracle = torch.optim.AdamW([q], weight_decay=0.1, **options)
    for t in range(20):
        p.grad = torch.randn(4, 32, generator=torch.Generator().manual_seed(t))
        q.grad = p.grad.clone()
        optimizer.step()
        oracle.step()
    shadow = optimizer.state[p]["shadow"]
    torch.testing.assert_close(shadow, q.detach(), rtol=1e-5, atol=1e-8)
    assert not torch.equal(p, shadow)  # the model computes with what the format holds
    if write_back == "nearest":
        fmt = get_format(weight_format)
        assert torch.equal(p, fmt.decode(fmt.encode(shadow)))


def test_a_shadow_takes_the_dtype_of_the_states_unless_told() -> None:
    for state_dtype, shadow_dtype, expected in (
        ("bf16", None, torch.bfloat16),
        ("fp32", None, torch.float32),
        ("bf16", "fp32", torch.float32),
    ):
        p = weight(4, 32)
        options = {"state_dtype": state_dtype, "shadow_dtype": shadow_dtype}
        optimizer = AdamW([p], weight_format="fp8_e4m3", shadow="persistent", **options)
        train(optimizer, p)
        assert optimizer.state[p]["shadow"].dtype == expected


# -- neighbours of a changed weight -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight_format", "moved"), [("nvfp4_sticky", False), ("fp8_e5m2", False), ("nvfp4", True)])
def test_an_update_of_one_weight_moves_others_only_through_an_amax_tensor_scale(
    weight_format: str, moved: bool
) -> None:
    """The drift of NVFP4: raising the largest weight by 1% moves every other block with `amax`, none with a sticky
    power of two."""
    p = weight(8, 64, dtype=torch.float32)
    with torch.no_grad():
        p[0, 0] = 0.5  # the largest
    optimizer = AdamW([p], lr=0.005, weight_decay=0.0, weight_format=weight_format)
    before = p.detach().clone()
    p.grad = torch.zeros_like(p)
    p.grad[0, 0] = -1.0
    optimizer.step()
    others = torch.ones_like(p, dtype=torch.bool)
    others[0] = False
    nonzero = others & (before != 0)
    assert (p[nonzero] != before[nonzero]).all() if moved else torch.equal(p[others], before[others])


@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan"])
def test_a_sticky_tensor_scale_is_kept_until_it_no_longer_fits(write_back: str) -> None:
    """The store tells the format what is stored: the largest weight may shrink by over 2 before the scale moves."""
    store = WeightStore(StorePlan(get_format("nvfp4_sticky"), write_back), weight(4, 32).detach(), {})
    scales = []
    for t, largest in enumerate((1.0, 0.4, 0.2), start=1):
        target = torch.full((4, 32), 0.1)
        target[0, 0] = largest
        if t == 1:
            store.initialise(target)
        else:
            write(store, target, torch.zeros(()), t)
        scales.append(store.tensors["weight.tensor_scale"].item())
    assert scales == [2.0**-11, 2.0**-11, 2.0**-13]


# -- shards -----------------------------------------------------------------------------------------------------------


def test_flat_positions_are_those_of_the_whole_tensor() -> None:
    shape = torch.Size((6, 4, 5))
    whole = torch.arange(shape.numel()).reshape(shape)
    assert flat_position(shape, (2, 4, 5), (2, 0, 0)) == whole[2, 0, 0]
    for local_shape, offset in (((6, 2, 5), (0, 2, 0)), ((3, 4, 2), (1, 0, 3)), ((0, 2, 5), (0, 2, 0))):
        block = tuple(slice(o, o + n) for o, n in zip(offset, local_shape, strict=True))
        assert torch.equal(flat_position(shape, local_shape, offset), whole[block])  # type: ignore[arg-type]
    assert flat_position(torch.Size(()), (), ()) == 0
    assert flat_position(torch.Size((0, 3)), (0, 3), (0, 0)) == 0


@pytest.mark.parametrize("weight_format", ["bf16", "fp8_e5m2"])
def test_shards_round_as_the_whole_tensor_does(weight_format: str) -> None:
    """Stochastic rounding of rows, and for bf16 of columns, held by different ranks."""
    w, delta = weight(8, 32).detach(), torch.full((8, 32), 3e-5)

    def written(rows: slice, columns: slice) -> Tensor:
        part = w[rows, columns].clone()
        offset = (rows.start, columns.start)
        position = flat_position(w.shape, tuple(part.shape), offset)
        store = WeightStore(
            StorePlan(get_format(weight_format), "stochastic"), part, {}, seed=4, tensor_id=2, position=position
        )
        store.initialise()
        write(store, store.read(), delta[rows, columns], 5)
        return store.read()

    full = written(slice(0, 8), slice(0, 32))
    assert torch.equal(torch.cat([written(slice(r, r + 2), slice(0, 32)) for r in range(0, 8, 2)]), full)
    if weight_format == "bf16":
        assert torch.equal(torch.cat([written(slice(0, 8), slice(c, c + 8)) for c in range(0, 32, 8)], dim=1), full)


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("weight_format", ["bf16", "fp32", "fp8_e4m3"])
def test_dtensor_parameters_train_like_plain_ones(one_rank, weight_format: str) -> None:
    plain = weight(8, 16)
    ends = []
    for placement in (None, Shard(0), Replicate()):
        own = plain.detach().clone()
        p = nn.Parameter(own if placement is None else distribute_tensor(own, one_rank, [placement]))
        optimizer = MPlusAdam([p], lr=1e-3, weight_format=weight_format, write_back="stochastic")
        for t in (1, 2, 3):
            g = torch.randn(8, 16, generator=torch.Generator().manual_seed(t)).to(torch.bfloat16)
            p.grad = g if placement is None else distribute_tensor(g, one_rank, [placement])
            optimizer.step()
        ends.append(p.detach().full_tensor() if isinstance(p, DTensor) else p.detach())
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
    assert not torch.equal(ends[0], plain)


@pytest.mark.parametrize(
    "options",
    [{"weight_format": "nvfp4"}, {"second_moment": "apollo_e"}, {"multiplicative_form": "normalized_rho_tensor"}],
)
def test_what_needs_the_whole_tensor_is_refused_on_a_shard(one_rank, options: dict) -> None:
    p = nn.Parameter(distribute_tensor(weight(8, 16), one_rank, [Shard(0)]))
    with pytest.raises(ValueError, match="these need the whole parameter"):
        MPlusAdam([p], **options)


# -- what a write hands out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight_format", "bound"), [("fp32", 0.0), ("bf16", 2.0**-8), ("fp8_e5m2", 2.0**-3)])
@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan"])
def test_a_write_hands_out_what_rounding_lost(weight_format: str, bound: float, write_back: str) -> None:
    """The value that was to be stored is the stored one and the error, which an error-feedback write-back passes on."""
    plan = StorePlan(get_format(weight_format), write_back)
    w = plan.read(plan.initial(torch.linspace(0.5, 1.0, 64).reshape(4, 16)), torch.Size((4, 16)))
    stored, delta = plan.initial(w), torch.full((4, 16), 1e-3)
    bits = torch.full((4, 16), 2**30, dtype=torch.int32) if plan.needs_bits else None
    written = plan.write(stored, w, delta, bits)
    error = plan.error(written)
    assert torch.equal(written.target, w + delta)
    assert torch.equal(plan.read(written.tensors, w.shape) + error, w + delta)
    assert (error.abs() <= (2 if plan.needs_bits else 1) * bound * (w + delta)).all()
    assert error.any() == (bound > 0)
    if plan.has_carry:
        assert torch.equal(written.tensors["carry"], error.to(torch.bfloat16))
