"""The grids e4m3, e5m2, e2m1: all codes, all midpoints and their float32 neighbours (F3), the saturating cast (F2).

Oracles: ml_dtypes and gfloat, at zero difference.

    pytest tests/numerics/test_formats_grids.py
"""

import math

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch

from mpadam.numerics import decode_table, random_bits, saturating_cast, spacing
from mpadam.numerics.grids import GRIDS, decode_e2m1, encode_e2m1, encode_e2m1_to_nearest, round_to_grid

ORACLES = {
    "e4m3": (ml_dtypes.float8_e4m3fn, gfloat.formats.format_info_ocp_e4m3),
    "e5m2": (ml_dtypes.float8_e5m2, gfloat.formats.format_info_ocp_e5m2),
    "e2m1": (ml_dtypes.float4_e2m1fn, gfloat.formats.format_info_ocp_e2m1),
}
FP8 = ("e4m3", "e5m2")
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}


def table(fmt: str) -> np.ndarray:
    """float32 values of all codes, by ml_dtypes."""
    codes = np.arange(16 if fmt == "e2m1" else 256, dtype=np.uint8)
    return codes.view(ORACLES[fmt][0]).astype(np.float32)


def magnitudes(fmt: str) -> np.ndarray:
    values = table(fmt)
    return np.unique(np.abs(values[np.isfinite(values)]))


def values_and_midpoints(fmt: str) -> torch.Tensor:
    """All finite values, all midpoints, and the float32 neighbours of both, in range, both signs."""
    values = magnitudes(fmt)
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(0))])
    points = points[points <= LARGEST[fmt]]
    return torch.from_numpy(np.concatenate([points, -points]))


def codes_of(x: torch.Tensor, fmt: str, rounding: str = "nearest", bits: torch.Tensor | None = None) -> torch.Tensor:
    if fmt == "e2m1":
        return encode_e2m1(round_to_grid(x, GRIDS["e2m1"], rounding, bits))
    return saturating_cast(x, fmt, rounding, bits).view(torch.uint8)


@pytest.mark.parametrize("fmt", ORACLES)
def test_f3_every_code_decodes_as_ml_dtypes_and_gfloat_say(fmt: str) -> None:
    got = decode_table(fmt).numpy()
    np.testing.assert_array_equal(got, table(fmt))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(table(fmt)))
    np.testing.assert_array_equal(got, gfloat.decode_ndarray(ORACLES[fmt][1], np.arange(len(got))).astype(np.float32))


@pytest.mark.parametrize("fmt", ORACLES)
def test_f3_every_value_encodes_to_its_own_code(fmt: str) -> None:
    values = decode_table(fmt)
    finite = values.isfinite()
    codes = torch.arange(len(values), dtype=torch.uint8)
    assert torch.equal(codes_of(values[finite], fmt), codes[finite])  # -0 keeps its sign, subnormals are reached


@pytest.mark.parametrize("fmt", ORACLES)
def test_f3_every_midpoint_rounds_as_ml_dtypes_and_gfloat_do(fmt: str) -> None:
    x = values_and_midpoints(fmt)
    dtype, info = ORACLES[fmt]
    got = codes_of(x, fmt)
    np.testing.assert_array_equal(got.numpy(), x.numpy().astype(dtype).view(np.uint8))
    rounded = gfloat.round_ndarray(info, x.numpy().astype(np.float64))
    np.testing.assert_array_equal(decode_table(fmt)[got.long()].numpy(), rounded)


@pytest.mark.parametrize("fmt", FP8)
def test_f3_random_values_of_all_magnitudes_round_as_ml_dtypes(fmt: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, generator=g) * torch.exp2(torch.rand(200_000, generator=g) * 60 - 45)
    x = x[x.abs() <= LARGEST[fmt]]
    np.testing.assert_array_equal(codes_of(x, fmt).numpy(), x.numpy().astype(ORACLES[fmt][0]).view(np.uint8))


F2_E4M3 = {448.0: 448.0, 464.0: 448.0, 465.0: 448.0, 480.0: 448.0, 1e4: 448.0, 3.4e38: 448.0}
F2_E5M2 = {1e4: 10240.0} | dict.fromkeys((57344.0, 61439.0, 61440.0, 65536.0, 3.4e38), 57344.0)


@pytest.mark.parametrize(("fmt", "rows"), [("e4m3", F2_E4M3), ("e5m2", F2_E5M2)])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_f2_out_of_range_saturates_and_inf_and_nan_are_reported(fmt: str, rows: dict, rounding: str) -> None:
    for value, want in rows.items():
        for sign in (1.0, -1.0):
            x = torch.full((64,), sign * value)
            bits = random_bits(seed=0, step=0, tensor_id=0, shape=64) if rounding == "stochastic" else None
            got = saturating_cast(x, fmt, rounding, bits).float()
            if rounding == "nearest" or value >= LARGEST[fmt]:
                assert (got == sign * want).all(), (fmt, value)
    special = torch.tensor([math.inf, -math.inf, math.nan, -math.nan])
    bits = torch.full((4,), -1, dtype=torch.int32) if rounding == "stochastic" else None
    assert saturating_cast(special, fmt, rounding, bits).float().isnan().all()


def test_f2_what_stacks_do_out_of_range_differs() -> None:
    """Why there is an own cast: if this fails, the stacks have come to agree, and the docs should say so."""
    x = np.float32(465.0)
    assert math.isnan(float(x.astype(ml_dtypes.float8_e4m3fn)))
    assert torch.tensor(61440.0).to(torch.float8_e5m2).float().isinf()


@pytest.mark.parametrize("fmt", ORACLES)
def test_stochastic_rounding_goes_only_to_the_two_neighbours_and_never_moves_a_value(fmt: str) -> None:
    x = values_and_midpoints(fmt)
    values = magnitudes(fmt)
    below = values[np.searchsorted(values, x.abs().numpy(), side="right") - 1]
    above = values[np.searchsorted(values, x.abs().numpy(), side="left")]
    decode = decode_table(fmt)
    for bits in (0, 1, -1, 2**31 - 1, -(2**31), 0x55555555):
        got = decode[codes_of(x, fmt, "stochastic", torch.full(x.shape, bits, dtype=torch.int32)).long()]
        assert torch.equal(got.signbit(), x.signbit())
        magnitude = got.abs().numpy()
        assert ((magnitude == below) | (magnitude == above)).all()


@pytest.mark.parametrize(
    ("fmt", "value", "below", "above"),
    [
        ("e4m3", 17.3, 16.0, 18.0),
        ("e4m3", 0.0007, 0.0, 2.0**-9),  # subnormals
        ("e4m3", 0.012, 6 * 2.0**-9, 7 * 2.0**-9),
        ("e4m3", 430.0, 416.0, 448.0),
        ("e5m2", 3.1e-6, 0.0, 2.0**-16),
        ("e5m2", 2.9e-5, 2.0**-16, 2.0**-15),
        ("e5m2", 50_000.0, 49152.0, 57344.0),
        ("e2m1", 0.3, 0.0, 0.5),
        ("e2m1", 2.2, 2.0, 3.0),
        ("e2m1", 5.9, 4.0, 6.0),
    ],
)
def test_stochastic_probability_is_the_fraction(fmt: str, value: float, below: float, above: float) -> None:
    """2**16 evenly spread random words: the upper neighbour comes up in proportion, to one part in 2**16."""
    x = torch.full((65536,), value)
    bits = ((torch.arange(65536) << 15) + (1 << 14)).to(torch.int32)
    got = decode_table(fmt)[codes_of(x, fmt, "stochastic", bits).long()].double()
    assert set(got.tolist()) == {below, above}
    share = float((got == above).double().mean())
    assert abs(share - (x[0].item() - below) / (above - below)) <= 2.0**-16
    # The same words with their sign bit set mean the same: 31 bits are compared.
    flipped = decode_table(fmt)[codes_of(x, fmt, "stochastic", bits | -(2**31)).long()].double()
    assert torch.equal(got, flipped)


@pytest.mark.parametrize(("fmt", "value"), [("e4m3", 2.0**-35), ("e2m1", 2.0**-28), ("e5m2", 2.0**-43)])
def test_at_least_24_random_bits_decide(fmt: str, value: float) -> None:
    """A value of about 2**-27 of a step must go up for some words (and for fewer than 2**-24 of them)."""
    x = torch.full((3,), value)
    threshold = round(value / float(spacing(x[:1], fmt)) * 2**31)
    bits = torch.tensor([threshold - 1, threshold, 2**31 - 1], dtype=torch.int32)
    assert (codes_of(x, fmt, "stochastic", bits) != 0).tolist() == [True, False, False]


@pytest.mark.parametrize("fmt", FP8)
def test_stochastic_mean_is_the_input_and_nearest_fails_the_same_check(fmt: str) -> None:
    n = 4000
    x = torch.randn(64, generator=torch.Generator().manual_seed(1)) * 3
    many = x.expand(n, -1).contiguous()
    bits = random_bits(seed=0, step=1, tensor_id=2, shape=many.shape)
    bound = 5 * spacing(x, fmt).double() / (2 * math.sqrt(n))
    stochastic = saturating_cast(many, fmt, "stochastic", bits).double().mean(0)
    nearest = saturating_cast(x, fmt).double()
    assert ((stochastic - x).abs() <= bound).all()
    assert not ((nearest - x).abs() <= bound).all()


@pytest.mark.parametrize("fmt", ORACLES)
def test_spacing_is_the_distance_to_the_next_value(fmt: str) -> None:
    values = magnitudes(fmt)
    inside = torch.from_numpy(np.concatenate([values[:-1], values[:-1] + np.diff(values) * np.float32(0.4)]))
    want = torch.from_numpy(np.concatenate([np.diff(values)] * 2))
    assert torch.equal(spacing(inside, fmt), want)
    assert torch.equal(spacing(-inside, fmt), want)
    top = torch.tensor([values[-1], 10 * values[-1]])
    assert (spacing(top, fmt) == float(values[-1] - values[-2])).all()
    assert spacing(torch.tensor([math.nan, math.inf]), fmt).isnan().all()


def test_spacing_of_bf16() -> None:
    x = torch.tensor([1.0, -1.99, 0.02, 1e-40, 0.0, 3e38, 2.0**-126])
    code = x.abs().view(torch.int32) >> 16
    above, below = (((code + d) << 16).view(torch.float32) for d in (1, 0))
    assert torch.equal(spacing(x, "bf16"), above - below)


def test_grids_that_are_torch_dtypes_round_as_torch_over_the_whole_range() -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = torch.from_numpy(np.concatenate([patterns, patterns >> 9, patterns | 0x70000000]).view(np.float32))
    for fmt, dtype in [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]:
        inside = x[x.abs() <= torch.finfo(dtype).max]
        got = round_to_grid(inside, GRIDS[fmt])
        assert torch.equal(got.view(torch.int32), inside.to(dtype).float().view(torch.int32))


def test_signs_of_zero_and_e2m1_codes() -> None:
    assert decode_e2m1(torch.tensor([8], dtype=torch.uint8)).signbit().item()
    tiny = torch.tensor([-1e-30, 1e-30, -0.0, 0.0])
    assert codes_of(tiny, "e2m1").tolist() == [8, 0, 8, 0]
    assert codes_of(tiny, "e4m3").tolist() == [128, 0, 128, 0]


def test_e2m1_to_nearest_without_a_look_at_bits() -> None:
    """Against ml_dtypes: every midpoint and its neighbours, what lies above the range, and numbers of any size."""
    patterns = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    anything = torch.from_numpy(patterns[np.isfinite(patterns)])
    x = torch.cat([values_and_midpoints("e2m1"), torch.tensor([6.1, -7.0, 1e30, 1e-45, -1e-45, 0.0, -0.0]), anything])
    got = encode_e2m1_to_nearest(x)
    expected = x.clamp(-6, 6).numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    np.testing.assert_array_equal(got.numpy(), expected)
    assert torch.equal(got, encode_e2m1(round_to_grid(x, GRIDS["e2m1"])))


@pytest.mark.parametrize("call", [spacing, decode_table, saturating_cast])
def test_an_unknown_grid_is_refused_with_the_names_that_there_are(call) -> None:
    arguments = ("e3m4",) if call is decode_table else (torch.ones(1), "e3m4")
    with pytest.raises(ValueError, match="e4m3"):
        call(*arguments)
    with pytest.raises(ValueError, match="e4m3, e5m2"):
        saturating_cast(torch.ones(1), "e2m1")
