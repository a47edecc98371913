"""The FP8 linear layer against a plain version of it: float64 sums, ml_dtypes casts, lists of past magnitudes."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mpadam.model.fp8 import compute as compute_module
from mpadam.model.fp8.control import fp8_compute, fp8_enabled, fp8_step
from mpadam.model.fp8.convert import convert_to_fp8

FORMATS = {
    "x": (ml_dtypes.float8_e4m3fn, 448.0),
    "w": (ml_dtypes.float8_e4m3fn, 448.0),
    "dy": (ml_dtypes.float8_e5m2, 57344.0),
}


class PlainFp8Linear:
    """The definition, written down once more: everything in numpy, nothing shared with the code under test."""

    def __init__(self) -> None:
        self.past: dict[str, list[float]] = {key: [] for key in FORMATS}
        self.seen = dict.fromkeys(FORMATS, 0.0)
        self.scale = {key: np.float32(1) for key in FORMATS}

    def cast(self, key: str, tensor: Tensor) -> np.ndarray:
        """Values of the FP8 tensor after its scale is taken out again, float64."""
        dtype, largest = FORMATS[key]
        x = tensor.float().numpy()
        self.seen[key] = max(self.seen[key], float(np.abs(x).max(initial=0)))
        codes = (x * self.scale[key]).clip(-largest, largest).astype(dtype)
        return codes.astype(np.float64) / np.float64(self.scale[key])

    def forward(self, x: Tensor, w: Tensor) -> np.ndarray:
        self.x, self.w = self.cast("x", x), self.cast("w", w)
        return self.x @ self.w.T

    def backward(self, dy: Tensor) -> tuple[np.ndarray, np.ndarray]:
        g = self.cast("dy", dy)
        return g @ self.w, g.T @ self.x

    def advance(self) -> None:
        for key, (_, largest) in FORMATS.items():
            self.past[key] = [*self.past[key], self.seen[key]][-16:]
            if max(self.past[key]) > 0:
                self.scale[key] = np.float32(largest) / np.float32(max(self.past[key]))
        self.seen = dict.fromkeys(FORMATS, 0.0)


def layer(n: int, k: int, *, backend: str = "emulated", seed: int = 0, std: float = 0.02) -> nn.ModuleDict:
    """A model of one projection, in bf16."""
    model = nn.ModuleDict({"up_proj": nn.Linear(k, n, bias=False)})
    generator = torch.Generator().manual_seed(seed)
    model["up_proj"].weight.data.normal_(0, std, generator=generator)
    return convert_to_fp8(model.bfloat16(), backend=backend)


def normal(*shape: int, seed: int, std: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * std).bfloat16()


def close(result: Tensor, expected: np.ndarray) -> None:
    """One rounding to bf16, and float32 sums in another order."""
    assert result.dtype == torch.bfloat16
    scale = np.sqrt(np.mean(expected**2)) if expected.size else 0.0
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=2.0**-8, atol=1e-5 * scale)


@pytest.mark.parametrize("backend", ["emulated", "native"])
@pytest.mark.parametrize(("m", "n", "k"), [(32, 48, 16), (7, 21, 50), (1, 5, 3)])
def test_twenty_steps_against_the_plain_version(backend: str, m: int, n: int, k: int) -> None:
    """Values and both gradients at every step, while magnitudes change by orders and saturate on the way."""
    model, plain = layer(n, k, backend=backend), PlainFp8Linear()
    linear = model["up_proj"]
    for t in range(20):
        x = normal(m, k, seed=3 * t, std=2.0 ** (t % 7)).requires_grad_()
        dy = normal(m, n, seed=3 * t + 1, std=10.0 ** -(t % 5))
        with fp8_step(model):
            y = linear(x)
            y.backward(dy)
        close(y.detach(), plain.forward(x.detach(), linear.weight.detach()))
        dx, dw = plain.backward(dy)
        close(x.grad, dx)
        close(linear.weight.grad, dw)
        plain.advance()
        with torch.no_grad():
            linear.weight.add_(normal(n, k, seed=3 * t + 2, std=0.1))
        linear.weight.grad = None


def test_quality_on_gaussians() -> None:
    """SQNR against exact products, the floors of the project: 18 dB output, 17 dB gradients."""
    model = layer(96, 128)
    linear = model["up_proj"]
    for t in range(2):  # the second step has scales
        x = normal(256, 128, seed=t).requires_grad_()
        dy = normal(256, 96, seed=10 + t, std=1e-4)
        linear.weight.grad = None
        with fp8_step(model):
            y = linear(x)
            y.backward(dy)
    weight = linear.weight.detach().double()
    exact = (x.detach().double() @ weight.T, dy.double() @ weight, dy.double().T @ x.detach().double())
    for result, reference, floor in zip((y, x.grad, linear.weight.grad), exact, (18, 17, 17), strict=True):
        noise = (result.detach().double() - reference).square().sum()
        assert 10 * torch.log10(reference.square().sum() / noise) > floor


def test_backends_agree_to_the_last_bit_but_for_the_order_of_sums() -> None:
    results = []
    for backend in ("emulated", "native"):
        model = layer(40, 56, backend=backend)
        x = normal(24, 56, seed=1).requires_grad_()
        for _ in range(3):
            with fp8_step(model):
                y = model["up_proj"](x)
                (y.float().square().mean() * 100).backward()
        results.append((y.detach().float(), x.grad.float(), fp8_compute(model).state.history))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2.0**-7, atol=1e-5)


@pytest.mark.parametrize("backend", ["emulated", "native"])
class TestAwkwardShapes:
    """5461 columns, one row, no rows, three leading dimensions: filled up inside, nothing dropped."""

    @pytest.mark.parametrize("rows", [(3, 5), (1,), (0,), (2, 0, 4)])
    def test_any_leading_shape(self, backend: str, rows: tuple[int, ...]) -> None:
        model = layer(11, 21, backend=backend)
        x = normal(*rows, 21, seed=0).requires_grad_()
        with fp8_step(model):
            y = model["up_proj"](x)
            y.float().sum().backward()
        assert y.shape == (*rows, 11)
        assert x.grad.shape == x.shape
        assert model["up_proj"].weight.grad.shape == (11, 21)
        if 0 in rows:
            assert not model["up_proj"].weight.grad.any()
            assert fp8_compute(model).state.scale.tolist()[0::2] == [1.0, 1.0], "nothing was seen: scales stay"

    def test_5461_both_ways(self, backend: str) -> None:
        for n, k in ((16, 5461), (5461, 16)):
            model, plain = layer(n, k, backend=backend), PlainFp8Linear()
            x, dy = normal(5, k, seed=1).requires_grad_(), normal(5, n, seed=2)
            y = model["up_proj"](x)
            y.backward(dy)
            close(y.detach(), plain.forward(x.detach(), model["up_proj"].weight.detach()))
            dx, dw = plain.backward(dy)
            close(x.grad, dx)
            close(model["up_proj"].weight.grad, dw)

    def test_zero_rows_stay_zero(self, backend: str) -> None:
        model = layer(24, 40, backend=backend)
        x = normal(10, 40, seed=1)
        x[3] = x[7] = 0
        x.requires_grad_()
        dy = normal(10, 24, seed=2)
        dy[3] = 0
        y = model["up_proj"](x)
        y.backward(dy)
        assert not y[[3, 7]].any()
        assert not x.grad[3].any()

    def test_all_zeros_are_no_division_by_zero_f1(self, backend: str) -> None:
        model = layer(16, 16, backend=backend, std=0.0)
        for _ in range(2):
            with fp8_step(model):
                y = model["up_proj"](torch.zeros(4, 16).bfloat16())
                (y.float() * 0).sum().backward()
        assert torch.equal(y, torch.zeros_like(y))
        assert fp8_compute(model).state.scale.tolist() == [1.0, 1.0, 1.0]
        assert torch.equal(model["up_proj"].weight.grad, torch.zeros(16, 16).bfloat16())

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_what_is_lost_shows_and_scales_survive(self, backend: str, bad: float) -> None:
        model = layer(16, 16, backend=backend)
        x = normal(4, 16, seed=0)
        with fp8_step(model):
            model["up_proj"](x).float().sum().backward()
        before = fp8_compute(model).state.scale
        x[2, 3] = bad
        with fp8_step(model):
            y = model["up_proj"](x)
            y.float().sum().backward()
        assert y[2].isnan().all()
        assert torch.isfinite(y[[0, 1, 3]]).all()
        assert fp8_compute(model).state.scale[0] == before[0]
        assert torch.isfinite(fp8_compute(model).state.scale).all()


class TestSteps:
    def test_micro_batches_share_scales_and_the_weight_is_cast_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """16 x 1 and 1 x 16 rows: the same outputs, bit for bit, and the same scales after each step."""
        casts = []
        original = compute_module.PRODUCTS["emulated"].cast
        counting = lambda x, *rest: (casts.append(tuple(x.shape)), original(x, *rest))[1]  # noqa: E731
        product = compute_module.PRODUCTS["emulated"]
        monkeypatch.setitem(compute_module.PRODUCTS, "emulated", type(product)(counting, product.multiply))
        whole, parts = layer(24, 32), layer(24, 32)
        for t in range(4):
            x, dy = normal(16, 32, seed=t, std=1 + t), normal(16, 24, seed=99 + t)
            with fp8_step(whole):
                y = whole["up_proj"](x)
                y.backward(dy)
            casts.clear()
            rows = []
            with fp8_step(parts):
                for i in range(16):
                    rows.append(parts["up_proj"](x[i : i + 1]))
                    rows[-1].backward(dy[i : i + 1])
            assert casts.count((24, 32)) == 1
            assert torch.equal(torch.cat(rows), y)
            for key in ("history", "scale"):
                assert torch.equal(getattr(fp8_compute(whole).state, key), getattr(fp8_compute(parts).state, key))

    def test_a_changed_weight_is_cast_anew_within_a_step(self) -> None:
        model, x = layer(16, 16, std=1.0), normal(4, 16, seed=0)
        model["up_proj"].weight.data.clamp_(min=0.1)  # twice a normal value is twice its cast, too
        first = model["up_proj"](x)
        with torch.no_grad():
            model["up_proj"].weight.mul_(2)
        assert torch.equal(model["up_proj"](x), 2 * first)
        model["up_proj"].weight.data = model["up_proj"].weight.data / 2
        assert torch.equal(model["up_proj"](x), first)

    def test_an_input_that_was_written_to_is_cast_anew(self) -> None:
        model, x = layer(16, 16), normal(4, 16, seed=0).clamp_(min=0.1)
        first = model["up_proj"](x)
        x.mul_(2)
        assert torch.equal(model["up_proj"](x), 2 * first)

    def test_error_inside_a_step_does_not_advance(self) -> None:
        model = layer(16, 16)

        def fail() -> None:
            with fp8_step(model):
                model["up_proj"](normal(4, 16, seed=0))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        assert fp8_compute(model).state.scale.tolist() == [1.0, 1.0, 1.0]


class TestEvaluation:
    def test_bf16_evaluation_is_the_plain_layer(self) -> None:
        model, x = layer(16, 16), normal(4, 16, seed=0)
        with fp8_enabled(model, False):
            assert torch.equal(model["up_proj"](x), nn.functional.linear(x, model["up_proj"].weight))
        assert not torch.equal(model["up_proj"](x), nn.functional.linear(x, model["up_proj"].weight))

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
    @pytest.mark.parametrize("fp8", [False, True])
    def test_evaluation_between_any_two_steps_changes_nothing_f8(self, fp8: bool, context: type) -> None:
        """F8: even where it is the evaluation that casts the new weight first."""
        histories = []
        for evaluates in (False, True):
            model, outputs = layer(16, 24), []
            for t in range(5):
                if evaluates:
                    with fp8_enabled(model, fp8), context():
                        result = model["up_proj"](normal(9, 24, seed=50 + t, std=1e3))
                        if result.requires_grad:
                            result.float().sum().backward()
                model["up_proj"].weight.grad = None
                with fp8_step(model):
                    y = model["up_proj"](normal(4, 24, seed=t))
                    y.backward(normal(4, 16, seed=t + 20))
                outputs += [y.detach(), model["up_proj"].weight.grad.clone()]
                with torch.no_grad():
                    model["up_proj"].weight.add_(model["up_proj"].weight.grad)
            histories.append([*outputs, fp8_compute(model).state.history, fp8_compute(model).state.scale])
        for without, with_evaluation in zip(*histories, strict=True):
            assert torch.equal(without, with_evaluation)

    def test_a_model_in_eval_mode_records_nothing(self) -> None:
        model = layer(16, 16).eval()
        model["up_proj"](normal(4, 16, seed=0).requires_grad_()).float().sum().backward()
        assert not fp8_compute(model).state.amax.any()

    def test_scales_are_those_of_training(self) -> None:
        model, plain = layer(16, 24), PlainFp8Linear()
        weight = model["up_proj"].weight
        with fp8_step(model):
            model["up_proj"](normal(4, 24, seed=0)).backward(normal(4, 16, seed=1))
        plain.forward(normal(4, 24, seed=0), weight.detach())
        plain.backward(normal(4, 16, seed=1))
        plain.advance()
        x = normal(6, 24, seed=2, std=100)  # saturates at the frozen scale
        with fp8_enabled(model, True), torch.no_grad():
            y = model["up_proj"](x)
        close(y, plain.forward(x, weight.detach()))


class TestFlushedShare:
    def test_first_step_flushes_gradients_of_1e_minus_6(self) -> None:
        """docs/algorithm.md, (42): at scale 1, e5m2 keeps nothing below 2**-17."""
        for backend in ("emulated", "native"):
            model = layer(16, 16, backend=backend)
            dy = torch.full((4, 16), 1e-6)
            dy[:, :4] = 1e-3
            dy[:, 4:8] = -1e-6
            dy[:, 8:12] = 0.0  # zeros are not lost
            shares = []
            for _ in range(2):
                with fp8_step(model, count_flushed=True) as step:
                    for rows in dy.bfloat16().split(2):  # two micro-batches
                        model["up_proj"](normal(2, 16, seed=0)).backward(rows)
                assert step.share is not None
                shares.append(step.share)
            assert shares == [pytest.approx(2 / 3), 0.0]

    def test_only_when_asked_for_and_where_something_is(self) -> None:
        model = layer(16, 16)
        with fp8_step(model) as step:
            model["up_proj"](normal(2, 16, seed=0)).backward(normal(2, 16, seed=1))
        assert step.share is None
        with fp8_step(model, count_flushed=True) as step:
            model["up_proj"](normal(2, 16, seed=0)).backward(torch.zeros(2, 16).bfloat16())
        assert step.share is None
        with fp8_step(nn.Linear(2, 2), count_flushed=True) as step:
            pass
        assert step.share is None
