"""Stochastic rounding adds no noise that the update did not ask for: displacement against a fixed grid, exact means,
and scales that move by powers of two, rarely, and find back down.

The oracle rounds in float64 onto the grid of the first encoding, whose scales never move."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stores import write as write_to_store

from mpadam.numerics import Bf16, Encoded, Format, Fp8Blocks, NvFp4, random_bits
from mpadam.optim.store import StorePlan, WeightStore

GRIDS = {"e2m1": (1, 0, 6.0), "e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0), "bf16": (7, -126, 3.4e38)}
FP8 = [
    Fp8Blocks(fmt=fmt, power_of_two_scale=power_of_two, **block)
    for fmt in ("e5m2", "e4m3")
    for power_of_two in (True, False)
    for block in ({"block_size": 256}, {"block_size": 24}, {"block_size": 32, "block_rows": 16})
]
NVFP4 = [NvFp4(), NvFp4(tensor_scale="pow2_sticky")]
FORMATS: list[Format] = [*FP8, *NVFP4, Bf16()]
BLOCKS: list[Format] = [*FP8, *NVFP4]


def named(formats: list[Format]):
    return pytest.mark.parametrize("f", formats, ids=lambda f: f.name)


def weights(rows: int = 64, cols: int = 272, std: float = 0.02) -> torch.Tensor:
    return std * torch.randn(rows, cols, generator=torch.Generator().manual_seed(0))


def write(f: Format, x: torch.Tensor, previous: Encoded, step: int) -> Encoded:
    bits = random_bits(seed=0, step=step, tensor_id=0, shape=x.shape)
    return f.encode(x, rounding="stochastic", bits=bits, previous=previous)


def on_fixed_grid(x: np.ndarray, scale: np.ndarray, grid: str, uniform: np.ndarray) -> np.ndarray:
    """float64 `x` stochastically rounded to `grid` times `scale`, by definition; beyond the largest code it clips."""
    mantissa_bits, min_exponent, largest = GRIDS[grid]
    magnitude = np.minimum(np.abs(x / scale), largest)
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, min_exponent)
    ulp = 2.0 ** (exponent - mantissa_bits)
    steps = magnitude / ulp
    steps = np.where(np.abs(steps - np.round(steps)) < 1e-6, np.round(steps), steps)  # float32 scales
    lower = np.floor(steps)
    return np.sign(x) * scale * ulp * (lower + (uniform < steps - lower))


def scales_of(f: Format, stored: Encoded) -> np.ndarray:
    """The scale of each weight: what the format decodes a code of one to."""
    ones = {"e4m3": 0x38, "e5m2": 0x3C, "e2m1": 0x22}
    if isinstance(f, Bf16):
        return np.ones(stored.shape)
    code = ones["e2m1" if isinstance(f, NvFp4) else f.fmt]
    codes = torch.full_like(stored.codes, code)
    return f.decode(Encoded({**stored.tensors, "codes": codes}, stored.shape)).double().numpy()


@named(FORMATS)
def test_small_updates_displace_weights_as_little_as_on_a_fixed_grid(f: Format) -> None:
    """300 updates of 1e-4 |w| with random signs. Scales that were rounded up displaced NVFP4's weights by 4 times their
    RMS."""
    stored = f.encode(weights(512 if f in NVFP4 else 16))  # few of NVFP4's blocks grow, by much: it takes more of them
    w = f.decode(stored).double().numpy()
    grid = {"fp8": getattr(f, "fmt", ""), "nvf": "e2m1", "bf1": "bf16"}[f.name[:3]]
    scale, fixed, exact, start = scales_of(f, stored), w.copy(), w.copy(), np.sqrt((w**2).mean())
    random = np.random.default_rng(0)
    for step in range(300):
        update = 1e-4 * np.abs(w) * random.choice([-1.0, 1.0], w.shape)
        exact += update
        fixed = on_fixed_grid(fixed + 1e-4 * np.abs(fixed) * np.sign(update), scale, grid, random.random(w.shape))
        stored = write(f, torch.from_numpy(w + update).float(), stored, step)
        w = f.decode(stored).double().numpy()
    displaced = np.sqrt(((w - exact) ** 2).mean())
    assert displaced < 1.2 * np.sqrt(((fixed - exact) ** 2).mean())
    assert displaced > 1e-3 * start  # it does round
    assert abs(np.sqrt((w**2).mean()) / start - 1) < 0.05


@named(FORMATS)
def test_a_millionth_moves_next_to_nothing(f: Format) -> None:
    """Whatever weights grow by a millionth, the largest of every block among them: at most a few in a thousand move."""
    stored = f.encode(weights(32))
    before = f.decode(stored)
    for step in range(20):
        stored = write(f, f.decode(stored) * (1 + 1e-6), stored, step)
    assert (f.decode(stored) != before).double().mean() < 20 * 1e-3


@named(FORMATS)
@pytest.mark.parametrize("growth", [-0.3, 0.02, 0.4, 3.0])
def test_every_weight_is_right_in_the_mean(f: Format, growth: float) -> None:
    """Also the largest of a block, and two that grow beyond it at once: nothing clips."""
    draws = 1000
    stored = f.encode(weights(2).expand(draws, 2, 272))
    x = f.decode(stored) * (1 + growth)
    error = (f.decode(write(f, x, stored, 1)).double() - x).numpy()
    assert (np.abs(error.mean(0)) <= 5 * error.std(0) / draws**0.5 + 1e-9).all()


@named(BLOCKS)
def test_weights_that_shrink_find_smaller_scales_again(f: Format) -> None:
    """In steps of 2%, to a hundredth: no scale stays more than about 8 times what the weights would be given again."""
    stored = f.encode(weights(16))
    first = scales_of(f, stored)
    for step in range(228):
        stored = write(f, f.decode(stored) * 0.98, stored, step)
    w = f.decode(stored)
    again = scales_of(f, f.encode(w))
    assert (scales_of(f, stored) <= 10 * again).all()  # float16 scales of 2**-24 times 1, 2, 3 ...
    assert np.median(scales_of(f, stored) / first) < 0.2
    assert 0.003 < w.pow(2).mean().sqrt() / 0.02 < 0.03


@named(NVFP4)
def test_a_weight_that_grows_moves_none_outside_its_block(f: NvFp4) -> None:
    """Also when the tensor scale has to double for it, and when it shrinks back."""
    stored = f.encode(weights())
    before = f.decode(stored)
    largest = divmod(int(before.abs().argmax()), before.shape[1])
    for step, factor in enumerate((1.01, 1.5, 3.0, 0.1)):
        x = f.decode(stored)
        x[largest] *= factor
        stored = write(f, x, stored, step)
    moved = (f.decode(stored) != before).nonzero()
    block = largest[1] // 16
    assert ((moved[:, 0] == largest[0]) & (moved[:, 1] // 16 == block)).all()
    assert len(moved) >= 1


@named(BLOCKS)
def test_scales_move_by_powers_of_two(f: Format) -> None:
    stored = f.encode(weights(16))
    first = scales_of(f, stored)
    for step in range(30):
        stored = write(f, f.decode(stored) * 1.1, stored, step)
    ratio = np.log2(scales_of(f, stored) / first)
    assert (np.abs(ratio - np.round(ratio)) < 1e-6).all()
    assert np.median(ratio) in (4, 5)  # 1.1**30 = 17


@named(NVFP4)
def test_a_block_that_was_not_a_number_gets_a_scale_again(f: NvFp4) -> None:
    x = weights(2, 48)
    broken = x.clone()
    broken[0, 3] = torch.nan
    stored = f.encode(broken)
    healed = f.decode(write(f, x, stored, 1))
    assert healed.isfinite().all()
    assert (healed - x).abs().max() < 0.04


# -- with a shadow ----------------------------------------------------------------------------------------------------


def store_of(f: Format, shadow: str, values: torch.Tensor) -> WeightStore:
    store = WeightStore(StorePlan(f, "stochastic", shadow), torch.empty_like(values, dtype=torch.bfloat16), {})
    store.initialise(values)
    return store


@pytest.mark.parametrize("shadow", ["refreshed", "persistent"])
@named(BLOCKS)
def test_a_step_of_zero_moves_nothing_beside_a_shadow(f: Format, shadow: str) -> None:
    """A bf16 shadow does not hold what NVFP4 or float16 scales decode to, which moved weights in every update."""
    store = store_of(f, shadow, weights(16))
    write_to_store(
        store, store.read(), torch.zeros(16, 272), 1
    )  # a persistent shadow holds no more than its dtype does
    weight, copy = store.read(), store.param.clone()
    for t in range(2, 5):
        write_to_store(store, store.read(), torch.zeros(16, 272), t)
    assert torch.equal(store.read(), weight)
    assert torch.equal(store.param, copy)


@pytest.mark.parametrize("shadow", ["refreshed", "persistent"])
@named(NVFP4)
def test_steps_that_a_bf16_shadow_would_lose_are_right_in_the_mean(f: Format, shadow: str) -> None:
    """1e-3 |w| is below half a bf16 ulp of most weights: rounded to nearest, the shadow would lose it."""
    draws = 4000
    store = store_of(f, shadow, weights(1).expand(draws, 272).contiguous())
    w = store.read()
    delta = 1e-3 * w.abs()
    write_to_store(store, w, delta, 1)
    gained = (store.read() - w).double().mean(0).numpy()
    deviation = (store.read() - w).double().std(0).numpy() / draws**0.5
    expected = delta[0].double().numpy()
    moved = np.abs(expected) > 0
    assert np.mean(np.abs(gained - expected)[moved] < 3 * deviation[moved] + 1e-9) > 0.95
    assert abs(gained[moved].sum() / expected[moved].sum() - 1) < 0.1
