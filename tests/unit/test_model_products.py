"""Products of bf16 matrices through float32: against float64, in every regime, and only where they are asked for."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import make_data, make_run, metrics_of, summary_of, train

from mpadam.machine import native_bf16_products, remembered_native_bf16_products
from mpadam.model.products import bf16_products
from mpadam.study.auto import Auto, auto_here
from mpadam.study.config import TrainingConfig
from mpadam.study.spec import read_run_file, write_run_file
from mpadam.training import machine

SIZES = [(1, 1, 1), (3, 5, 7), (64, 96, 40), (128, 1000, 17)]  # M, K, N
ATEN_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "linear", "scaled_dot_product", "mkldnn")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rounded_once(exact):
    """The bf16 neighbours of float64 values that float32 sums of these lengths may round to: lower and upper."""
    slack = exact.abs() * 2.0**-18
    return (exact - slack).float().bfloat16(), (exact + slack).float().bfloat16()


def assert_rounded_once(product, exact):
    assert product.dtype == torch.bfloat16
    low, high = rounded_once(exact)
    near = (product.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-3 * exact.abs().mean()
    assert ((product == low) | (product == high) | near).all()
    assert ((product == low) | (product == high)).float().mean() > 0.99


class Seen(TorchDispatchMode):
    """Products that torch is really asked for, with the dtypes of their operands."""

    def __init__(self):
        super().__init__()
        self.dtypes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if any(part in name for part in ATEN_PRODUCTS):
            self.dtypes.setdefault(name, set()).update(x.dtype for x in args if isinstance(x, torch.Tensor))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "multiply",
    [
        lambda a, b: a @ b,
        torch.matmul,
        torch.mm,
        lambda a, b: a.matmul(b),
        lambda a, b: functional.linear(a, b.T),
        lambda a, b: torch.einsum("mk,kn->mn", a, b),
        lambda a, b: torch.bmm(a[None], b[None])[0],
        lambda a, b: torch.mm(a, b, out=torch.empty(len(a), b.shape[1], dtype=torch.bfloat16)),
        lambda a, b: torch.full((len(a), b.shape[1]), torch.nan).bfloat16().addmm_(a, b, beta=0),
    ],
)
def test_a_product_is_a_float32_product_rounded_once(multiply, size):
    m, k, n = size
    a, b = draw(m, k), draw(k, n, seed=1)
    with bf16_products("float32"):
        product = multiply(a, b)
    assert_rounded_once(product, a.double() @ b.double())


def test_what_is_written_in_place_is_the_tensor_that_was_given():
    a, b, out = draw(3, 5), draw(5, 4, seed=1), torch.zeros(3, 4, dtype=torch.bfloat16)
    with bf16_products("float32"):
        assert out.addmm_(a, b) is out
        assert torch.mm(a, b, out=out) is out
    assert_rounded_once(out, a.double() @ b.double())


def test_the_backward_pass_takes_the_same_route():
    layer, x = nn.Linear(40, 24, bias=False).bfloat16(), draw(9, 40).requires_grad_()
    with Seen() as seen, bf16_products("float32"):
        y = layer(x)
        y.backward(draw(9, 24, seed=2))
    assert seen.dtypes
    assert set.union(*seen.dtypes.values()) == {torch.float32}
    dy = draw(9, 24, seed=2).double()
    assert_rounded_once(x.grad, dy @ layer.weight.double())
    assert_rounded_once(layer.weight.grad, dy.T @ x.double())


def test_attention_is_rounded_once():
    q, k, v = (draw(2, 3, 16, 8, seed=seed) for seed in range(3))
    with bf16_products("float32"):
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    exact = functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert_rounded_once(y, exact)


def test_other_dtypes_and_mixed_ones_are_torchs_to_compute_or_refuse():
    a, b = draw(3, 5).float(), draw(5, 4, seed=1).float()
    with bf16_products("float32"):
        assert torch.equal(a @ b, torch.mm(a, b))
        with pytest.raises(RuntimeError, match="dtype"):
            a @ b.bfloat16()


@pytest.mark.parametrize("route", [None, "native"])
def test_other_routes_leave_torch_as_it_is(route):
    with Seen() as seen, bf16_products(route):
        draw(3, 5) @ draw(5, 4)
    assert set.union(*seen.dtypes.values()) == {torch.bfloat16}


def test_nothing_is_replaced_in_the_process():
    """Whoever imports mpadam, or has used the route, finds torch's own operators."""
    with bf16_products("float32"):
        pass
    with Seen() as seen:
        draw(3, 5) @ draw(5, 4)
    assert set.union(*seen.dtypes.values()) == {torch.bfloat16}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("regime", [("bf16", "bf16"), ("fp32", "bf16"), ("nvfp4", "fp8"), ("bf16", "fp8")])
def test_no_bf16_product_is_left_in_a_training(regime, attention, tmp_path):
    """Forward and backward pass, head and loss, emulated FP8 products, validation and looks at updates."""
    masters, compute = regime
    options = {"masters": masters, "compute": compute, "attention": attention, "steps": 2, "evaluate_every": 1}
    state = "fp32" if masters == "fp32" else "bf16"
    data = make_data(tmp_path)
    path = make_run(tmp_path / "run", data, **options, state_dtype=state, bf16_products="float32")
    run = read_run_file(path / "run.yaml")
    write_run_file(path / "run.yaml", run.model_copy(update={"probe_every": 1}))
    with Seen() as seen:
        assert train(path) == 0
    assert seen.dtypes
    assert torch.bfloat16 not in set.union(*seen.dtypes.values()), seen.dtypes


@pytest.fixture(scope="module")
def routes(tmp_path_factory):
    """One run on each route, and with another seed."""
    folder = tmp_path_factory.mktemp("routes")
    data = make_data(folder)
    runs = {
        name: make_run(folder / name, data, steps=30, **options)
        for name, options in {
            "own": {},
            "float32": {"bf16_products": "float32"},
            "seed": {"bf16_products": "float32", "seed": 1},
        }.items()
    }
    for path in runs.values():
        assert train(path) == 0
    return runs


def test_the_route_decides_the_bits_and_the_hash(routes):
    own, other = routes["own"], routes["float32"]
    assert read_run_file(own / "run.yaml").spec.hash != read_run_file(other / "run.yaml").spec.hash
    assert metrics_of(own) != metrics_of(other)


def test_losses_of_two_routes_differ_by_less_than_those_of_two_seeds(routes):
    own, other, seed = (summary_of(routes[name])["val_loss"] for name in ("own", "float32", "seed"))
    assert abs(own - other) < abs(other - seed)


def test_an_older_run_file_keeps_its_hash_and_its_text(tmp_path):
    """A run.yaml without the field means torch's own products and is the text of that time."""
    path = make_run(tmp_path / "run", make_data(tmp_path))
    run = read_run_file(path / "run.yaml")
    assert run.spec.training.bf16_products is None
    assert "bf16_products" not in (path / "run.yaml").read_text()
    changed = run.spec.model_copy(update={"training": run.spec.training.model_copy(update={"bf16_products": "native"})})
    assert changed.hash != run.spec.hash


def test_native_is_refused_where_torch_lacks_it(monkeypatch, tmp_path, capsys):
    path = make_run(tmp_path / "run", make_data(tmp_path), bf16_products="native")
    monkeypatch.setattr(machine, "native_bf16_products", lambda: False)
    with pytest.raises(ValueError, match=r"bf16_products.*native.*float32"):
        train(path)


@pytest.mark.parametrize(("native", "route"), [(True, "native"), (False, "float32")])
def test_auto_is_what_torch_asks_itself(native, route, monkeypatch):
    monkeypatch.setattr("mpadam.study.auto.remembered_native_bf16_products", lambda: native)
    request = {"regime": {"compute": "bf16"}, "training": {"device": "cpu", "fp8_backend": "auto", "compile": False}}
    assert auto_here(request).bf16_products == route
    request["training"]["bf16_products"] = "float32"
    assert auto_here(request).bf16_products is None  # named: nothing to find out
    request["training"] = {"device": "cuda", "fp8_backend": "native", "compile": False}
    assert auto_here(request) == Auto(compile=auto_here(request).compile)  # nothing is recorded for CUDA


def test_torch_is_asked_once_per_processor(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("mpadam.machine.native_bf16_products", lambda: asked.append(1) or native_bf16_products())
    assert remembered_native_bf16_products() == remembered_native_bf16_products() == native_bf16_products()
    assert len(asked) == 1
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX")  # another processor, as far as torch is concerned
    remembered_native_bf16_products()
    assert len(asked) == 2


def test_a_route_is_no_choice_on_cuda():
    with pytest.raises(ValueError, match="bf16_products: auto"):
        TrainingConfig(device="cuda", bf16_products="float32")
    assert TrainingConfig(device="cpu", bf16_products="float32").bf16_products == "float32"
