"""round_bf16: every special value (O1), nearest against ml_dtypes, stochastic by exact counts.

pytest tests/numerics/test_rounding.py
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from mpadam.numerics import random_bits, round_bf16

BF16_MAX = 3.3895313892515355e38
FP32_MAX = 3.4028234663852886e38
EXTREME_BITS = torch.tensor([0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x10000, -1, -(2**31), 2**31 - 1], dtype=torch.int32)


def from_pattern(*patterns: int) -> torch.Tensor:
    return torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32))


def draws(x: torch.Tensor, n: int = 1000) -> torch.Tensor:
    """bf16 results of n stochastic draws of each value, the extreme bit patterns among them, as float64 (n, numel)."""
    many = x.reshape(1, -1).expand(n, -1).contiguous()
    bits = random_bits(seed=1, step=2, tensor_id=3, shape=many.shape)
    bits[: len(EXTREME_BITS)] = EXTREME_BITS[:, None]
    return round_bf16(many, "stochastic", bits).double()


def masked_add(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """The stochastic rounding that is usually copied: add 16 random bits, drop 16."""
    pattern = x.view(torch.int32).long() + (bits.long() & 0xFFFF)
    return (pattern & 0xFFFF0000).to(torch.int32).view(torch.float32)


NANS = (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF, 0x7F80FFFF, 0x7F810000)


@pytest.mark.parametrize("pattern", NANS)
def test_o1_nan_stays_nan(pattern: int) -> None:
    x = from_pattern(pattern)
    assert draws(x).isnan().all()
    # A width that fills vector registers and one that leaves a tail: the two may be different code.
    assert round_bf16(x.expand(1003).contiguous()).isnan().all()


def test_o1_the_usual_rounding_launders_what_this_one_keeps() -> None:
    bits = torch.tensor([0xFFFF], dtype=torch.int32)
    assert masked_add(from_pattern(0x7FFFFFFF), bits).item() == 0.0
    assert masked_add(from_pattern(0x7F800001), torch.zeros(1, dtype=torch.int32)).isinf().all()
    assert masked_add(torch.tensor([FP32_MAX]), bits).isinf().all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_o1_inf_zero_and_the_largest_values(sign: float) -> None:
    x = sign * torch.tensor([math.inf, 0.0, BF16_MAX, FP32_MAX])
    got = draws(x)
    assert (got[:, 0] == sign * math.inf).all()
    assert (got[:, 1] == 0).all()
    assert (got[:, 1].signbit() == (sign < 0)).all()
    assert (got[:, 2:] == sign * BF16_MAX).all()  # the neighbour above is not a number: the largest finite value
    nearest = round_bf16(x).double()
    assert nearest.tolist() == [sign * math.inf, sign * 0.0, sign * BF16_MAX, sign * math.inf]
    assert nearest[1].signbit() == (sign < 0)


@pytest.mark.parametrize("value", [1e-40, -1e-40, 1e-45, 1.1754942e-38, 9.2e-41, -3e-39])
def test_o1_subnormals_go_to_one_of_the_two_neighbours(value: float) -> None:
    x = torch.tensor([value])
    unit = 2.0**-133  # spacing of bf16 subnormals
    steps = abs(x.double()) / unit
    allowed = {math.copysign(math.floor(steps) * unit, value), math.copysign(math.ceil(steps) * unit, value)}
    seen = set(draws(x, 4000)[:, 0].tolist())
    assert seen <= allowed
    if 0.01 < steps % 1 < 0.99:
        assert seen == allowed


def test_o1_exact_values_never_move() -> None:
    patterns = np.arange(65536, dtype=np.uint32) << 16
    x = torch.from_numpy(patterns.view(np.float32))
    x = x[x.isfinite()]
    for bits in EXTREME_BITS:
        got = round_bf16(x, "stochastic", bits.expand(x.shape))
        assert torch.equal(got.view(torch.int16), x.to(torch.bfloat16).view(torch.int16))  # signs of zero too


def values_and_midpoints() -> torch.Tensor:
    """All bf16 values, all midpoints, and the float32 neighbours of both; finite and not."""
    base = np.arange(65536, dtype=np.uint32) << 16
    patterns = np.concatenate([base + d for d in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    return torch.from_numpy(patterns.view(np.float32))


def test_nearest_equals_ml_dtypes_on_all_values_and_midpoints() -> None:
    x = values_and_midpoints()
    got = round_bf16(x)
    with np.errstate(invalid="ignore", over="ignore"):
        want = torch.from_numpy(x.numpy().astype(ml_dtypes.bfloat16).view(np.int16))
    finite = ~x.isnan()
    assert torch.equal(got.view(torch.int16)[finite], want[finite])
    assert got[~finite].isnan().all()
    assert torch.equal(got.view(torch.int16)[finite], x.to(torch.bfloat16).view(torch.int16)[finite])


@pytest.mark.parametrize(
    "pattern", [0x3F800000, 0xBF804321, 0x00000001, 0x00018000, 0x80012345, 0x7F7E8001, 0x42F6E979]
)
def test_stochastic_probability_is_exactly_the_fraction(pattern: int) -> None:
    """Over all 2**16 values of the bits that are used, the value goes up as often as its dropped bits say."""
    bits = torch.arange(65536, dtype=torch.int32)
    x = from_pattern(pattern).expand(65536).contiguous()
    got = round_bf16(x, "stochastic", bits).view(torch.int16).to(torch.int32) & 0xFFFF
    up = int((got != pattern >> 16).sum())
    assert up == pattern & 0xFFFF
    assert set(got.tolist()) <= {pattern >> 16, (pattern >> 16) + 1}


def mean_is_the_input(results: torch.Tensor, x: torch.Tensor, ulp: torch.Tensor) -> bool:
    n = results.shape[0]
    return bool(((results.mean(0) - x.double()).abs() <= 5 * ulp / (2 * math.sqrt(n))).all())


def test_stochastic_mean_is_the_input_and_nearest_fails_the_same_check() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0)) * 0.02
    ulp = torch.exp2(torch.floor(torch.log2(x.abs().double())) - 7)
    assert mean_is_the_input(draws(x, 10_000), x, ulp)
    assert not mean_is_the_input(round_bf16(x).double().expand(10_000, -1), x, ulp)


def test_shapes_and_strides_are_kept() -> None:
    x = torch.randn(6, 4).t()
    bits = random_bits(seed=0, step=0, tensor_id=0, shape=x.shape)
    assert round_bf16(x).shape == round_bf16(x, "stochastic", bits).shape == (4, 6)
    assert torch.equal(round_bf16(x), round_bf16(x.contiguous()))
    assert round_bf16(torch.tensor(1.0)).shape == ()
    assert round_bf16(torch.empty(0, 3)).shape == (0, 3)
    assert not round_bf16(torch.ones(2, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("x", "rounding", "bits", "word"),
    [
        (torch.ones(2, dtype=torch.float64), "nearest", None, "float32"),
        (torch.ones(2), "up", None, "nearest, stochastic"),
        (torch.ones(2), "stochastic", None, "random_bits"),
        (torch.ones(2), "nearest", torch.zeros(2, dtype=torch.int32), "takes none"),
        (torch.ones(2), "stochastic", torch.zeros(3, dtype=torch.int32), "shape"),
        (torch.ones(2), "stochastic", torch.zeros(2, dtype=torch.int64), "int32"),
    ],
)
def test_wrong_arguments_are_refused_with_the_remedy(x, rounding, bits, word) -> None:
    with pytest.raises(ValueError, match=word):
        round_bf16(x, rounding, bits)
