"""NvFp4: parity with torchao, the sticky tensor scale and the drift it avoids, special values (F1, F5, F6).

pytest tests/numerics/test_formats_nvfp4.py
"""

import math

import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

from mpadam.numerics import Encoded, NvFp4, decode_table, random_bits, saturating_cast, spacing
from mpadam.numerics.grids import GRIDS, round_to_grid

AMAX, STICKY = NvFp4(), NvFp4(tensor_scale="pow2_sticky")
both = pytest.mark.parametrize("f", [AMAX, STICKY], ids=lambda f: f.name)
roundings = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


def gaussian(*shape: int, std: float = 0.02, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std


def bits_for(rounding: str, shape: tuple[int, ...], step: int = 1) -> torch.Tensor | None:
    return random_bits(seed=0, step=step, tensor_id=0, shape=shape) if rounding == "stochastic" else None


def block_scales(encoded: Encoded) -> torch.Tensor:
    return encoded.tensors["scales"].view(torch.float8_e4m3fn).double()


def inputs() -> dict[str, torch.Tensor]:
    mixed = gaussian(64, 256, std=1.0) * torch.exp2(
        torch.randint(-20, 20, (64, 1), generator=torch.Generator()).float()
    )
    return {
        "gaussian": gaussian(128, 512),
        "small": gaussian(16, 64, std=1e-7),
        "large": gaussian(16, 64, std=1e6),
        "rows of mixed size": mixed,
        "one outlier": torch.cat([gaussian(1, 64), torch.full((1, 64), 30.0)]),
        "a block of zeros": torch.cat([gaussian(4, 48), torch.zeros(4, 16)], dim=1),
        "3-d": gaussian(3, 8, 32),
    }


@pytest.mark.parametrize("name", inputs())
def test_parity_with_torchao_at_zero_difference(name: str) -> None:
    x = inputs()[name].contiguous()
    theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()))
    ours = AMAX.encode(x)
    assert torch.equal(ours.codes, theirs.qdata)
    assert torch.equal(ours.tensors["scales"], theirs.scale.view(torch.uint8))
    assert torch.equal(ours.tensors["tensor_scale"], theirs.per_tensor_scale)
    assert torch.equal(AMAX.decode(ours), theirs.dequantize(torch.float32))


def test_torchao_is_not_right_on_zeros_and_inf() -> None:
    """Where parity ends, and why: a NaN from zeros, and an Inf that turns into finite values (F1, F5)."""
    zeros = torch.zeros(1, 16)
    assert (
        NVFP4Tensor.to_nvfp4(zeros, per_tensor_scale=per_tensor_amax_to_scale(zeros.max())).dequantize().isnan().any()
    )
    x = torch.ones(1, 16)
    x[0, 3] = math.inf
    theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=torch.tensor(1.0)).dequantize()
    assert theirs.isfinite().all()
    assert not AMAX.decode(AMAX.encode(zeros)).any()
    assert AMAX.decode(AMAX.encode(x)).isnan().all()


@both
def test_stored_bits_mean_what_the_formula_says(f: NvFp4) -> None:
    """Decoded again, byte by byte, in float64."""
    x = gaussian(5, 50)
    encoded = f.encode(x)
    assert encoded.codes.shape == (5, 25)
    low, high = encoded.codes & 15, encoded.codes >> 4
    codes = torch.stack((low, high), -1).reshape(5, 50)
    scale = block_scales(encoded).repeat_interleave(16, 1)[:, :50]
    values = decode_table("e2m1")[codes.long()].double() * scale * encoded.tensors["tensor_scale"].double()
    assert torch.allclose(f.decode(encoded).double(), values, rtol=2e-7, atol=0)
    if f is STICKY:
        assert torch.equal(f.decode(encoded).double(), values)


@both
def test_signal_to_noise_on_gaussian_weights(f: NvFp4) -> None:
    x = gaussian(512, 512)
    noise = f.decode(f.encode(x)) - x
    assert 10 * math.log10(float(x.square().sum() / noise.square().sum())) >= 19.5


@both
def test_codes_that_are_a_part_of_something_decode(f: NvFp4) -> None:
    """At an odd address, and with the strides of a transposed tensor."""
    encoded = f.encode(gaussian(7, 50))
    whole = torch.zeros(encoded.codes.numel() + 3, dtype=torch.uint8)
    whole[3:] = encoded.codes.flatten()
    for codes in (whole[3:].view_as(encoded.codes), encoded.codes.t().contiguous().t()):
        part = Encoded({**encoded.tensors, "codes": codes}, encoded.shape)
        assert torch.equal(f.decode(part), f.decode(encoded))


@both
@roundings
@pytest.mark.parametrize("shape", [(512, 60), (3, 32001), (60,), (), (0,), (4, 0), (1, 1), (2, 3, 33), (5, 17)])
def test_f6_any_shape_round_trips_and_storage_is_half_a_byte_a_weight(f: NvFp4, rounding: str, shape) -> None:
    x = gaussian(*shape)
    encoded = f.encode(x, rounding=rounding, bits=bits_for(rounding, shape))
    decoded = f.decode(encoded)
    assert decoded.shape == encoded.shape == x.shape
    rows, cols = (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)
    assert encoded.nbytes == rows * ((cols + 1) // 2) + rows * -(-cols // 16) + 4
    assert encoded.codes.dtype == encoded.tensors["scales"].dtype == torch.uint8
    if cols % 2 and rows:
        assert (encoded.codes.reshape(rows, -1)[:, -1] >> 4 == 0).all()  # the half byte that holds no weight


@both
def test_f6_padding_is_in_no_amax_and_blocks_never_cross_rows(f: NvFp4) -> None:
    x = gaussian(4, 60)
    x[2] *= 1000
    encoded = f.encode(x)
    for row in range(4):  # the last block, 12 wide, as it comes out with the same tensor scale
        amax = x[row, 48:].abs().max() / 6 / encoded.tensors["tensor_scale"]
        want = saturating_cast(amax.clamp(min=2.0**-6).reshape(1), "e4m3").double()
        assert block_scales(encoded)[row, 3] == want


@both
@roundings
def test_f1_zero_tiny_and_mixed_blocks_stay_finite_and_leave_zero(f: NvFp4, rounding: str) -> None:
    for x in (torch.zeros(3, 40), torch.full((3, 40), 1e-40), torch.full((3, 40), 1e-30)):
        x[0, 0] = -0.0
        encoded = f.encode(x, rounding=rounding, bits=bits_for(rounding, x.shape))
        decoded = f.decode(encoded)
        assert decoded.isfinite().all()
        assert decoded[0, 0] == 0
        assert decoded[0, 0].signbit()
        after = f.encode(decoded + 0.01, rounding=rounding, bits=bits_for(rounding, x.shape), previous=encoded)
        assert (f.decode(after) - 0.01).abs().max() < 0.004
    x = gaussian(4, 64)
    x[0, :16], x[1, 16:32], x[2, ::3], x[3, 0] = 0.0, 1e-40, 0.0, 1e4
    encoded = f.encode(x, rounding=rounding, bits=bits_for(rounding, x.shape))
    decoded = f.decode(encoded)
    assert decoded.isfinite().all()
    assert (decoded[x == 0] == 0).all()
    x[3, 0] = 1.0
    x[0, :16] = 0.01
    after = f.decode(f.encode(x, rounding=rounding, bits=bits_for(rounding, x.shape), previous=encoded))
    assert (after[0, :16] - 0.01).abs().max() < 0.004


@both
@roundings
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_f5_a_block_with_nan_or_inf_is_nan_whole_and_others_do_not_notice(f: NvFp4, rounding: str, bad: float) -> None:
    x = gaussian(3, 50)
    x[1, 20] = 0.0
    bits = bits_for(rounding, x.shape)
    clean = f.decode(f.encode(x, rounding=rounding, bits=bits))
    x[1, 20] = bad
    encoded = f.encode(x, rounding=rounding, bits=bits)
    decoded = f.decode(encoded)
    assert decoded[1, 16:32].isnan().all()
    decoded[1, 16:32] = clean[1, 16:32]
    assert torch.equal(decoded, clean)
    again = f.encode(f.decode(encoded), previous=encoded)
    assert f.decode(again)[1, 16:32].isnan().all()
    assert f.decode(f.encode(torch.full((5,), bad))).isnan().all()


def smallest_power_of_two(amax: float) -> float:
    return next(2.0**k for k in range(-110, 128) if amax <= 2688 * 2.0**k)


@pytest.mark.parametrize("amax", [0.1, 2688.0, 2688.0001, 1344.0, 1344.0001, 1e-3, 2e38, 0.65625, 1e-20])
def test_sticky_scale_is_the_smallest_power_of_two_that_holds_the_tensor(amax: float) -> None:
    encoded = STICKY.encode(torch.tensor([amax, -amax / 3]))
    assert encoded.tensors["tensor_scale"].item() == smallest_power_of_two(float(torch.tensor(amax)))


def test_sticky_scale_changes_only_on_overflow_or_far_below() -> None:
    stored = STICKY.encode(torch.full((4,), 2000.0))
    assert stored.tensors["tensor_scale"].item() == 1.0
    for amax, scale in [(2688.0, 1.0), (2689.0, 2.0), (1000.0, 1.0), (672.0, 1.0), (671.9, 0.25), (1e-9, 2.0**-41)]:
        new = STICKY.encode(torch.full((4,), amax), previous=stored)
        assert new.tensors["tensor_scale"].item() == scale, amax


@roundings
def test_with_a_sticky_scale_changing_one_weight_moves_none_outside_its_block(rounding: str) -> None:
    x = gaussian(40, 100)
    stored = STICKY.encode(x, rounding=rounding, bits=bits_for(rounding, x.shape))
    w = STICKY.decode(stored)
    top = divmod(int(w.abs().argmax()), 100)
    for place, factor in [(top, 1.01), (top, 0.5), ((7, 97), 1.5), ((0, 0), -1.0)]:
        new = w.clone()
        new[place] *= factor
        after = STICKY.decode(
            STICKY.encode(new, rounding=rounding, bits=bits_for(rounding, x.shape, 2), previous=stored)
        )
        moved = after != w
        row, block = place[0], place[1] // 16 * 16
        moved[row, block : block + 16] = False
        assert not moved.any()


def test_with_the_amax_scale_raising_the_largest_weight_moves_all_others_the_drift() -> None:
    x = gaussian(40, 96)
    stored = AMAX.encode(x)
    w = AMAX.decode(stored)
    new = w.clone()
    new[divmod(int(w.abs().argmax()), 96)] *= 1.01
    after = AMAX.decode(AMAX.encode(new, previous=stored))
    others = (w != 0) & (w.abs() < w.abs().max())
    assert (after != w)[others].double().mean() > 0.99
    ratio = after[others] / w[others]
    assert abs(ratio.median() - 1.01) < 1e-3


def test_sticky_decoding_is_exact_in_bf16_and_amax_is_not() -> None:
    x = gaussian(64, 256)
    encoded = STICKY.encode(x)
    assert torch.equal(STICKY.decode(encoded, torch.bfloat16).float(), STICKY.decode(encoded))
    encoded = AMAX.encode(x)
    assert not torch.equal(AMAX.decode(encoded, torch.bfloat16).float(), AMAX.decode(encoded))


@pytest.mark.parametrize("std", [0.02, 1e-3, 40.0])
def test_stochastic_block_scales_are_rounded_up(std: float) -> None:
    x = gaussian(50, 160, std=std, seed=2)
    table = np.sort(decode_table("e4m3").numpy()[1:127]).astype(np.float64)
    table = table[table >= 2.0**-6]
    encoded = STICKY.encode(x, rounding="stochastic", bits=bits_for("stochastic", x.shape))
    ratio = x.reshape(50, 10, 16).abs().amax(2).double() / 6 / encoded.tensors["tensor_scale"].double()
    want = table[np.searchsorted(table, ratio.numpy() * (1 - 1e-6))]
    np.testing.assert_array_equal(block_scales(encoded).numpy(), want)
    nearest = STICKY.encode(x)
    assert (block_scales(nearest).numpy() < want).mean() > 0.3  # to nearest, half of them would saturate


def mean_of_draws(f: NvFp4, x: torch.Tensor, n: int) -> torch.Tensor:
    many = x.expand(n, -1).contiguous()
    return f.decode(f.encode(many, rounding="stochastic", bits=bits_for("stochastic", many.shape))).double().mean(0)


@both
def test_stochastic_mean_is_the_weight_for_the_largest_too(f: NvFp4) -> None:
    n = 3000
    x = gaussian(256, seed=4)
    encoded = f.encode(x, rounding="stochastic", bits=bits_for("stochastic", x.shape))
    scale = (block_scales(encoded) * encoded.tensors["tensor_scale"].double()).repeat_interleave(16)
    bound = 5 * spacing((x / scale).float(), "e2m1").double() * scale / (2 * math.sqrt(n)) + 1e-7 * x.abs()
    assert ((mean_of_draws(f, x, n) - x).abs() <= bound).all()
    nearest = f.decode(f.encode(x)).double()
    assert not ((nearest - x).abs() <= bound).all()  # negative control: the check can fail


def test_negative_control_block_scales_to_nearest_bias_the_largest_weight() -> None:
    n = 3000
    x = next(b for b in gaussian(50, 16, std=300.0, seed=8) if b.abs().max() / 6 > saturated_scale(b))
    top, scale = int(x.abs().argmax()), saturated_scale(x)
    many = (x[top] / scale).expand(n).contiguous()
    biased = round_to_grid(many, GRIDS["e2m1"], "stochastic", bits_for("stochastic", (n,))).double().mean() * scale
    bound = 5 * 2 * scale / (2 * math.sqrt(n))
    assert abs(biased - x[top]) > bound
    assert abs(mean_of_draws(STICKY, x, n)[top] - x[top]) <= bound


def saturated_scale(block: torch.Tensor) -> float:
    return saturating_cast((block.abs().max() / 6).reshape(1), "e4m3").float().item()


@both
def test_stochastic_results_are_one_of_the_two_neighbours_and_values_stay(f: NvFp4) -> None:
    x = gaussian(30, 64, seed=11)
    scales = f.encode(x, rounding="stochastic", bits=bits_for("stochastic", x.shape))
    unit = (block_scales(scales) * scales.tensors["tensor_scale"].double()).repeat_interleave(16, 1)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    ratio = (x.double() / unit).abs().clamp(max=6)
    above = torch.searchsorted(grid, ratio * (1 - 1e-7))
    below = torch.searchsorted(grid, ratio * (1 + 1e-7), right=True) - 1
    for step in range(20):
        got = f.decode(f.encode(x, rounding="stochastic", bits=bits_for("stochastic", x.shape, step)))
        code = torch.bucketize((got.double() / unit).abs(), grid + 1e-3)
        assert ((code == above) | (code == below)).all()
        assert (got.signbit() == x.signbit()).all()
    stored = f.encode(x)
    w = f.decode(stored)
    for step in range(50):
        again = f.encode(w, rounding="stochastic", bits=bits_for("stochastic", x.shape, step), previous=stored)
        assert torch.equal(f.decode(again), w)


def test_wrong_tensor_scale_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="amax, pow2_sticky"):
        NvFp4(tensor_scale="max")
