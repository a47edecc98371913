"""FP8 casts and products, against ml_dtypes and float64."""

import ml_dtypes
import numpy as np
import pytest
import torch

from mpadam.model.fp8 import products
from mpadam.model.fp8.products import PRODUCTS, magnitude
from mpadam.numerics import saturating_cast

ORACLE = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}


def oracle(x: torch.Tensor, fmt: str) -> np.ndarray:
    """Finite float32 values rounded by ml_dtypes, saturating; float32."""
    dtype, largest = ORACLE[fmt]
    return x.numpy().clip(-largest, largest).astype(dtype).astype(np.float32)


def cast(backend: str, x: torch.Tensor, scale: float, fmt: str) -> torch.Tensor:
    return PRODUCTS[backend].cast(x, torch.tensor(scale), magnitude(x), fmt).float()


def all_bf16() -> torch.Tensor:
    return torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def midpoints(fmt: str) -> torch.Tensor:
    """All values of the format, all midpoints, each also one float32 ulp up and down."""
    dtype, _ = ORACLE[fmt]
    codes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    values = np.unique(codes[np.isfinite(codes)])
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    around = [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    return torch.from_numpy(np.concatenate(around))


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("backend", ["native", "emulated"])
class TestCast:
    def test_ties_and_their_neighbours(self, backend: str, fmt: str) -> None:
        x = midpoints(fmt)
        np.testing.assert_array_equal(cast(backend, x, 1.0, fmt).numpy(), oracle(x, fmt))

    @pytest.mark.parametrize("scale", [1.0, 2.0**-9, 0.3, 737.1, 2.0**40])
    def test_every_finite_bf16_value_at_a_time(self, backend: str, fmt: str, scale: float) -> None:
        x = all_bf16()
        x = x[torch.isfinite(x)]
        x = x[x.float().abs() * scale < 3e38]
        expected = oracle(x.float() * torch.tensor(scale), fmt)
        assert np.array_equal(cast(backend, x, scale, fmt).numpy(), expected)
        small = x[x.float().abs() * scale <= ORACLE[fmt][1]]  # the path that clamps nothing
        expected = oracle(small.float() * torch.tensor(scale), fmt)
        assert np.array_equal(cast(backend, small, scale, fmt).numpy(), expected)

    def test_out_of_range_f2(self, backend: str, fmt: str) -> None:
        """F2: finite values saturate, Inf and NaN become NaN, and neighbours are not touched."""
        largest = ORACLE[fmt][1]
        x = torch.tensor([448.0, 464.0, 465.0, 480.0, 1e4, -1e4, 61440.0, 1e30, -1e30, 3.4e38, 1.5])
        expected = x.clamp(-largest, largest)
        exact = expected.abs() == largest
        assert torch.equal(cast(backend, x, 1.0, fmt)[exact], expected[exact])
        bad = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e4, 1.5, 0.0])
        result = cast(backend, bad, 1.0, fmt)
        assert result[:3].isnan().all()
        assert torch.equal(result[3:], torch.from_numpy(oracle(bad[3:], fmt)))

    def test_same_bits_as_the_cast_of_the_weight_formats(self, backend: str, fmt: str) -> None:
        x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 300
        assert torch.equal(cast(backend, x, 3.7, fmt), saturating_cast(x * 3.7, fmt).float())

    def test_the_input_is_left_alone(self, backend: str, fmt: str) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.full((4, 4), 1.3, dtype=dtype)
            before = x.clone()
            cast(backend, x, 7.0, fmt)
            assert torch.equal(x, before)


def test_magnitude() -> None:
    assert magnitude(torch.tensor([-3.0, 2.0]).bfloat16()).item() == 3.0
    assert magnitude(torch.empty(0, 8)).item() == 0.0
    assert magnitude(torch.tensor([1.0, torch.nan])).isnan()
    assert magnitude(torch.tensor([1.0, -torch.inf])).item() == torch.inf


@pytest.mark.parametrize("shape", [(32, 48, 16), (33, 5461 % 64, 7), (1, 1, 1), (17, 16, 5)])
@pytest.mark.parametrize("formats", [("e4m3", "e4m3"), ("e5m2", "e4m3")])
@pytest.mark.parametrize("backend", ["native", "emulated"])
class TestMultiply:
    """`torch._scaled_mm` runs on a CPU too: slowly, so the matrices are small."""

    def operands(self, backend: str, shape: tuple, formats: tuple) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        m, k, n = shape
        generator = torch.Generator().manual_seed(m + k + n)
        exact = [torch.randn(m, k, generator=generator) * 8, torch.randn(k, n, generator=generator) * 8]
        exact = [saturating_cast(x, fmt).float() for x, fmt in zip(exact, formats, strict=True)]
        dtype = {"native": None, "emulated": torch.bfloat16}[backend]
        low = [
            x.to(dtype or (torch.float8_e4m3fn if fmt == "e4m3" else torch.float8_e5m2))
            for x, fmt in zip(exact, formats, strict=True)
        ]
        return exact, low

    def test_value_and_shape(self, backend: str, shape: tuple, formats: tuple) -> None:
        (a, b), low = self.operands(backend, shape, formats)
        scales = torch.tensor(0.37), torch.tensor(1.91)
        result = PRODUCTS[backend].multiply(*low, *scales, torch.bfloat16)
        expected = (a.double() @ b.double()) * (scales[0].double() * scales[1].double())
        assert result.shape == expected.shape
        assert result.dtype == torch.bfloat16
        # one rounding to bf16 (half an ulp is 2**-9), and float32 sums
        allowed = expected.abs() * 2.0**-8 + 1e-5 * (a.abs().double() @ b.abs().double())
        assert ((result.double() - expected).abs() <= allowed).all()
        assert (result == expected.bfloat16()).double().mean() > 0.98  # twice rounded, a quarter would differ


def test_native_product_gets_the_layout_that_hardware_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU refuses what the CPU accepts: row- and column-major operands, sizes in sixteens, not both e5m2."""
    calls = []

    def scaled_mm(a, b, scale_a, scale_b, *, out_dtype, use_fast_accum):
        assert a.stride() == (a.shape[1], 1)
        assert b.stride() == (1, b.shape[0])
        assert not any(size % 16 for size in (*a.shape, *b.shape))
        assert not a.dtype == b.dtype == torch.float8_e5m2
        assert scale_a.dtype == scale_b.dtype == torch.float32
        assert scale_a.numel() == scale_b.numel() == 1
        assert not use_fast_accum
        calls.append((a.shape, b.shape))
        return torch.zeros(a.shape[0], b.shape[1], dtype=out_dtype)

    monkeypatch.setattr(products.torch, "_scaled_mm", scaled_mm)
    x, w = torch.randn(50, 5461).to(torch.float8_e4m3fn), torch.randn(24, 5461).to(torch.float8_e4m3fn)
    dy, one = torch.randn(50, 24).to(torch.float8_e5m2), torch.ones(())
    multiply = PRODUCTS["native"].multiply
    assert multiply(x, w.t(), one, one, torch.bfloat16).shape == (50, 24)
    assert multiply(dy, w, one, one, torch.bfloat16).shape == (50, 5461)
    assert multiply(dy.t(), x, one, one, torch.bfloat16).shape == (24, 5461)
    assert calls == [((64, 5472), (5472, 32)), ((64, 32), (32, 5472)), ((32, 64), (64, 5472))]


@pytest.mark.parametrize("backend", ["native", "emulated"])
def test_empty_products(backend: str) -> None:
    one, dtype = torch.ones(()), {"native": torch.float8_e4m3fn, "emulated": torch.bfloat16}[backend]
    multiply = PRODUCTS[backend].multiply
    assert multiply(torch.empty(0, 16).to(dtype), torch.ones(16, 8).to(dtype), one, one, torch.bfloat16).shape == (0, 8)
    weight_gradient = multiply(torch.empty(8, 0).to(dtype), torch.empty(0, 16).to(dtype), one, one, torch.bfloat16)
    assert torch.equal(weight_gradient, torch.zeros(8, 16, dtype=torch.bfloat16))
