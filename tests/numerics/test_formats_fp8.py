"""Fp8Blocks: scales, blocks, special values (F1, F5, F6), against a plain quantizer on ml_dtypes and float64.

pytest tests/numerics/test_formats_fp8.py
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from mpadam.numerics import Encoded, Fp8Blocks, random_bits, saturating_cast, spacing

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
DTYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
ALL = [Fp8Blocks(fmt=fmt, power_of_two_scale=p) for fmt in LARGEST for p in (True, False)]
names = {"ids": lambda f: f.name}


def gaussian(*shape: int, std: float = 0.02, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std


def bits_for(shape: tuple[int, ...], step: int = 1) -> torch.Tensor:
    return random_bits(seed=0, step=step, tensor_id=0, shape=shape)


def scales_of(f: Fp8Blocks, encoded: Encoded) -> torch.Tensor:
    stored = encoded.tensors["scales"]
    return torch.exp2(stored.double() - 127) if f.power_of_two_scale else stored.double()


def candidate_scales(power_of_two: bool) -> np.ndarray:
    """All scales there are, in order, in float64."""
    if power_of_two:
        return np.exp2(np.arange(-110, 128, dtype=np.float64))
    return np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)


def plain_scale(f: Fp8Blocks, amax: float, stochastic: bool) -> float:
    """The smallest scale with amax <= max * scale; for nearest, the one below it if the rounded amax fits there."""
    scales, largest = candidate_scales(f.power_of_two_scale), LARGEST[f.fmt]
    at = min(int(np.searchsorted(scales * largest, amax)), len(scales) - 1)
    rounded = float(np.float32(amax / scales[at]).astype(DTYPES[f.fmt])) * scales[at]
    if not stochastic and at > 0 and rounded <= largest * scales[at - 1]:
        at -= 1
    return float(scales[at])


def plain_quantize(f: Fp8Blocks, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(decoded, scales) of rows, block by block, rounding to nearest."""
    out, scales = np.empty_like(x), []
    for row, decoded in zip(x, out, strict=True):
        for start in range(0, row.size, f.block_size):
            block = row[start : start + f.block_size]
            scale = plain_scale(f, float(np.abs(block).max()), stochastic=False)
            ratio = np.clip(block / np.float32(scale), -LARGEST[f.fmt], LARGEST[f.fmt])
            decoded[start : start + f.block_size] = ratio.astype(DTYPES[f.fmt]).astype(np.float32) * np.float32(scale)
            scales.append(scale)
    return out, np.array(scales)


@pytest.mark.parametrize("f", ALL, **names)
@pytest.mark.parametrize("std", [0.02, 0.003, 5.0])
@pytest.mark.parametrize("width", [512, 300, 7])
def test_equals_the_plain_quantizer(f: Fp8Blocks, std: float, width: int) -> None:
    x = gaussian(9, width, std=std)
    x[3] *= 1e-4
    want, scales = plain_quantize(f, x.numpy())
    encoded = f.encode(x)
    np.testing.assert_array_equal(f.decode(encoded).numpy(), want)
    np.testing.assert_array_equal(scales_of(f, encoded).flatten().numpy(), scales)


@pytest.mark.parametrize("f", ALL, **names)
@pytest.mark.parametrize("std", [0.02, 0.003, 1e-6, 100.0])
def test_scales_are_rounded_up_so_that_stochastic_rounding_never_saturates(f: Fp8Blocks, std: float) -> None:
    x = gaussian(40, 256, std=std, seed=3)
    encoded = f.encode(x, rounding="stochastic", bits=bits_for((40, 256)))
    amax = x.abs().amax(1, keepdim=True).double()
    scales = scales_of(f, encoded)
    assert (amax <= LARGEST[f.fmt] * scales).all()
    want = [plain_scale(f, float(a), stochastic=True) for a in amax]
    assert scales.flatten().tolist() == want


@pytest.mark.parametrize("fmt", LARGEST)
def test_a_float16_scale_is_at_least_its_smallest_value_and_at_most_its_largest(fmt: str) -> None:
    f = Fp8Blocks(fmt=fmt, power_of_two_scale=False)
    assert f.encode(torch.full((4,), 1e-30)).tensors["scales"].item() == 2.0**-24
    encoded = f.encode(torch.tensor([3e38, -1.0]))
    assert encoded.tensors["scales"].item() == 65504.0
    assert f.decode(encoded)[0].item() == 65504.0 * LARGEST[fmt]  # saturated, not Inf


def test_e5m2_scales_of_weights_near_002_are_float16_subnormals() -> None:
    """Why the scale is rounded up: here its grid is coarse, and nearest would saturate half of the blocks."""
    x = gaussian(400, 256)
    scale = x.abs().amax(1) / 57344
    assert (scale < 2.0**-14).all()
    saturated = x.abs().amax(1) > 57344 * scale.half().float()
    assert 0.35 < saturated.float().mean() < 0.65


@pytest.mark.parametrize(("fmt", "floor"), [("e4m3", 30.5), ("e5m2", 24.5)])
@pytest.mark.parametrize("power_of_two", [True, False])
def test_signal_to_noise_on_gaussian_weights(fmt: str, floor: float, power_of_two: bool) -> None:
    f = Fp8Blocks(fmt=fmt, power_of_two_scale=power_of_two)
    x = gaussian(512, 512)
    noise = f.decode(f.encode(x)) - x
    assert 10 * math.log10(float(x.square().sum() / noise.square().sum())) >= floor


def mean_of_draws(f: Fp8Blocks, x: torch.Tensor, n: int) -> torch.Tensor:
    many = x.expand(n, -1).contiguous()
    return f.decode(f.encode(many, rounding="stochastic", bits=bits_for(many.shape))).double().mean(0)


@pytest.mark.parametrize("f", ALL, **names)
def test_stochastic_mean_is_the_weight_for_the_largest_too(f: Fp8Blocks) -> None:
    n = 3000
    x = gaussian(256, seed=5)
    scale = plain_scale(f, float(x.abs().max()), stochastic=True)
    bound = 5 * spacing(x / scale, f.fmt).double() * scale / (2 * math.sqrt(n))
    assert ((mean_of_draws(f, x, n) - x).abs() <= bound).all()
    nearest = f.decode(f.encode(x)).double()
    assert not ((nearest - x).abs() <= bound).all()  # negative control: the check can fail


def test_negative_control_a_scale_rounded_to_nearest_biases_the_largest_weight() -> None:
    """The same check on a quantizer that rounds its float16 scale to nearest, on a block where that is down."""
    n = 3000
    x = next(b for b in gaussian(50, 256, seed=6) if b.abs().max() > 57344 * (b.abs().max() / 57344).half().float())
    top = int(x.abs().argmax())
    scale = (x.abs().max() / 57344).half().float()
    many = (x[top] / scale).expand(n).contiguous()
    biased = saturating_cast(many, "e5m2", "stochastic", bits_for((n,))).double().mean() * scale
    bound = 5 * 8192 * scale / (2 * math.sqrt(n))
    assert abs(biased - x[top]) > bound
    assert abs(mean_of_draws(Fp8Blocks(power_of_two_scale=False), x, n)[top] - x[top]) <= bound


@pytest.mark.parametrize("f", ALL, **names)
def test_blocks_run_along_rows_never_across_and_a_short_last_block_has_its_own_scale(f: Fp8Blocks) -> None:
    x = gaussian(3, 300)
    x[:, 256:] *= 1e-3
    x[1] *= 100
    encoded = f.encode(x)
    assert encoded.codes.shape == (3, 300)
    assert encoded.tensors["scales"].shape == (3, 2)
    for row in range(3):  # each block alone gives the same codes
        for part in (slice(0, 256), slice(256, 300)):
            alone = f.encode(x[row, part])
            assert torch.equal(alone.codes, encoded.codes[row, part])
    assert (scales_of(f, encoded)[:, 1] <= scales_of(f, encoded)[:, 0]).all()


def test_tiles_of_two_dimensions() -> None:
    f = Fp8Blocks(block_size=16, block_rows=4)
    x = gaussian(2, 10, 40)
    encoded = f.encode(x)
    assert encoded.tensors["scales"].shape == (2, 3, 3)
    decoded = f.decode(encoded)
    for batch, rows, cols in [(0, slice(0, 4), slice(0, 16)), (1, slice(8, 10), slice(32, 40))]:
        tile = x[batch, rows, cols]
        assert torch.equal(decoded[batch, rows, cols], f.decode(f.encode(tile)))
    line = gaussian(40)
    assert torch.equal(f.decode(f.encode(line)), Fp8Blocks(block_size=16).decode(Fp8Blocks(block_size=16).encode(line)))


@pytest.mark.parametrize("f", ALL, **names)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_f1_zero_tiny_and_mixed_blocks_stay_finite_and_leave_zero(f: Fp8Blocks, rounding: str) -> None:
    x = gaussian(6, 256)
    x[0], x[1], x[2], x[3, ::2] = 0.0, 1e-40, 1e-30, 0.0
    x[4, :4] = torch.tensor([1e30, 1e-30, -1e38, -0.0])
    bits = bits_for(x.shape) if rounding == "stochastic" else None
    encoded = f.encode(x, rounding=rounding, bits=bits)
    decoded = f.decode(encoded)
    assert decoded.isfinite().all()
    assert (decoded[x == 0] == 0).all()
    assert decoded[4, 3].signbit()
    assert not decoded[0].any()
    if f.power_of_two_scale and f.fmt == "e5m2":
        assert (decoded[2] - x[2]).abs().max() <= 0.25 * 1e-30
    after = f.decode(f.encode(decoded + 0.01, rounding=rounding, bits=bits, previous=encoded))
    assert (after[:2] - 0.01).abs().max() < 0.01 * 0.25


@pytest.mark.parametrize("f", ALL, **names)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_f5_nan_and_inf_are_reported_and_their_neighbours_keep_their_values(f, bad: float, rounding: str) -> None:
    x = gaussian(2, 512)
    bits = bits_for(x.shape) if rounding == "stochastic" else None
    x[1, 300] = 0.0
    clean = f.decode(f.encode(x, rounding=rounding, bits=bits))
    x[1, 300] = bad
    encoded = f.encode(x, rounding=rounding, bits=bits)
    decoded = f.decode(encoded)
    assert decoded[1, 300].isnan()
    decoded[1, 300] = 0.0
    assert torch.equal(decoded, clean)
    assert f.decode(f.encode(torch.full((4,), bad))).isnan().all()


@pytest.mark.parametrize("f", ALL, **names)
@pytest.mark.parametrize("shape", [(512, 60), (5, 32001), (60,), (), (0,), (4, 0), (1, 1), (2, 3, 257)])
def test_f6_any_shape_round_trips_and_storage_is_one_byte_a_weight_and_one_scale_a_block(f, shape) -> None:
    x = gaussian(*shape)
    encoded = f.encode(x)
    assert f.decode(encoded).shape == encoded.shape == encoded.codes.shape == x.shape
    rows, cols = (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)
    scale_bytes = 1 if f.power_of_two_scale else 2
    assert encoded.nbytes == rows * cols + rows * -(-cols // 256) * scale_bytes
    assert encoded.codes.dtype == torch.uint8
    assert all(t.is_contiguous() for t in encoded.tensors.values())


def test_bf16_decoding_is_exact_with_powers_of_two() -> None:
    for fmt in LARGEST:
        f = Fp8Blocks(fmt=fmt)
        encoded = f.encode(gaussian(8, 300) * torch.logspace(-30, 30, 8)[:, None])
        assert torch.equal(f.decode(encoded, torch.bfloat16).float(), f.decode(encoded))


@pytest.mark.parametrize("f", ALL, **names)
def test_under_stochastic_rounding_what_nothing_changed_does_not_move(f: Fp8Blocks) -> None:
    x = gaussian(20, 300, std=0.004, seed=9)
    stored = f.encode(x, rounding="stochastic", bits=bits_for(x.shape))
    before = w = f.decode(stored)
    for step in range(2, 6):
        w = w.clone()
        w[3, 5] += 1e-3
        stored = f.encode(w, rounding="stochastic", bits=bits_for(x.shape, step), previous=stored)
        w = f.decode(stored)
    changed = w != before
    assert changed[3, :256].any()
    changed[3, :256] = False
    assert not changed.any()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"fmt": "e3m4"}, "e4m3"), ({"block_size": 0}, "whole number"), ({"block_rows": 0}, "whole number")],
)
def test_wrong_arguments_are_refused(arguments: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Fp8Blocks(**arguments)


def test_names() -> None:
    assert Fp8Blocks().name == "fp8_e5m2"
    assert Fp8Blocks(fmt="e4m3", block_size=128).name == "fp8_e4m3-b128"
    assert Fp8Blocks(block_size=256, block_rows=256, power_of_two_scale=False).name == "fp8_e5m2-256x256-fp16scale"
