"""What is asked of Transformer Engine, against stand-in modules that record calls and refuse what it would refuse.

The stand-in multiplies in bf16, so values can be checked; its state is a counter that every call moves, in evaluation
too. It knows only names and keywords of Transformer Engine 1.0 to 2.x.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from mpadam.model.build import build_model
from mpadam.model.fp8.control import fp8_compute, fp8_enabled, fp8_state_dict, fp8_step, load_fp8_state_dict
from mpadam.model.fp8.convert import convert_to_fp8, projections
from mpadam.model.fp8.recipe import Fp8Recipe
from mpadam.model.fp8.transformer_engine import import_problem
from mpadam.model.loss import loss_sum, token_nll
from mpadam.study.spec import ModelSpec

SPEC = ModelSpec(
    hidden_size=32,
    intermediate_size=53,
    layers=2,
    heads=2,
    vocab_size=64,
    sequence_length=8,
    attention="eager",
)


@dataclass
class Record:
    """What the stand-ins saw."""

    recipes: list[dict] = field(default_factory=list)
    layers: list[tuple] = field(default_factory=list)
    regions: list[dict] = field(default_factory=list)
    calls: list[tuple] = field(default_factory=list)
    open_region: dict | None = None


def stand_ins(record: Record) -> dict[str, ModuleType]:
    class DelayedScaling:
        def __init__(self, **options: object) -> None:
            known = {"margin", "fp8_format", "amax_history_len", "amax_compute_algo", "reduce_amax"}
            assert options.keys() <= known
            record.recipes.append(options)

    class Linear(nn.Module):
        def __init__(self, in_features: int, out_features: int, *, bias: bool, params_dtype: torch.dtype,
                     device: torch.device) -> None:  # fmt: skip
            super().__init__()
            self.weight = nn.Parameter(torch.ones(out_features, in_features, dtype=params_dtype, device=device))
            self.sizes, self.count = (out_features, in_features), torch.zeros(1, dtype=torch.uint8)
            self.fp8_meta = {"scaling_bwd": SimpleNamespace(scale=torch.ones(2))}
            record.layers.append((self.sizes, bias))

        def forward(self, x: Tensor) -> Tensor:
            assert record.open_region is not None, "outside an autocast region Transformer Engine computes in bf16"
            assert id(self) not in record.open_region["called"], "at most one call of a module in a region"
            assert self.weight.shape == self.sizes
            assert not any(size % 16 for size in (*x.shape, *self.weight.shape))
            record.open_region["called"].add(id(self))
            record.calls.append((tuple(x.shape), self.training))
            self.count += 1
            return nn.functional.linear(x, self.weight)

        def get_extra_state(self) -> Tensor:
            return self.count.clone()

        def set_extra_state(self, state: Tensor) -> None:
            self.count = state.clone()

    @contextmanager
    def fp8_autocast(*, enabled: bool, fp8_recipe: DelayedScaling, fp8_group: object) -> Iterator[None]:
        assert enabled
        assert isinstance(fp8_recipe, DelayedScaling)
        assert record.open_region is None
        record.open_region = {"group": fp8_group, "called": set()}
        record.regions.append(record.open_region)
        try:
            yield
        finally:
            record.open_region = None

    names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.common",
             "transformer_engine.common.recipe")  # fmt: skip
    modules = {name: ModuleType(name) for name in names}
    vars(modules["transformer_engine.pytorch"]).update(Linear=Linear, fp8_autocast=fp8_autocast)
    vars(modules["transformer_engine.common.recipe"]).update(
        DelayedScaling=DelayedScaling, Format=SimpleNamespace(HYBRID="hybrid", E4M3="e4m3")
    )
    return modules


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    record = Record()
    for name, module in stand_ins(record).items():
        monkeypatch.setitem(sys.modules, name, module)
    return record


def llama() -> nn.Module:
    return convert_to_fp8(build_model(SPEC, seed=0), backend="transformer_engine")


def tokens(rows: int = 3) -> Tensor:
    return torch.randint(0, 64, (rows, 8), generator=torch.Generator().manual_seed(0))


def train_step(model: nn.Module, micro_batches: int = 1, **options: bool) -> object:
    with fp8_step(model, **options) as step:
        for _ in range(micro_batches):
            loss_sum(model, tokens(), tokens(), scale=1.0)[0].backward()
    return step


def test_the_paper_s_recipe(record: Record) -> None:
    llama()
    assert record.recipes == [
        {"margin": 0, "fp8_format": "hybrid", "amax_history_len": 16, "amax_compute_algo": "max", "reduce_amax": False}
    ]


def test_recipe_and_group_are_passed_on(record: Record) -> None:
    model, group = build_model(SPEC, seed=0), object()
    convert_to_fp8(model, backend="transformer_engine", recipe=Fp8Recipe(amax_history=4, margin=1), group=group)
    token_nll(model, tokens(), tokens())
    assert (record.recipes[0]["amax_history_len"], record.recipes[0]["margin"]) == (4, 1)
    assert record.recipes[0]["reduce_amax"] is True
    assert record.regions[0]["group"] is group


def test_layers_without_bias_in_sizes_it_accepts(record: Record) -> None:
    llama()
    square, up, down = ((32, 32), False), ((64, 32), False), ((32, 64), False)
    assert record.layers == 2 * [square, square, square, square, up, up, down]


def test_parameters_keep_identity_and_names_and_no_memory_is_doubled(record: Record) -> None:
    model = build_model(SPEC, seed=0)
    before = dict(model.named_parameters())
    convert_to_fp8(model, backend="transformer_engine")
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert model.state_dict().keys() == build_model(SPEC, seed=0).state_dict().keys()
    assert all(layer.engine.weight.numel() == 0 for layer in fp8_compute(model).layers.values())


def test_values_and_gradients_come_back_in_the_model_s_shapes(record: Record) -> None:
    """The stand-in computes in bf16: filled up, cut and lent, the result is that of the plain model."""
    model, plain = llama(), build_model(SPEC, seed=0)
    train_step(model)
    loss_sum(plain, tokens(), tokens(), scale=1.0)[0].backward()
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-2, atol=2e-2 * b.grad.abs().max().item(), msg=name)


def test_one_region_a_forward_pass(record: Record) -> None:
    model = llama()
    train_step(model, micro_batches=3)
    assert len(record.regions) == 3
    assert len(record.calls) == 3 * 14
    assert record.open_region is None


def test_a_region_ends_when_the_forward_pass_fails(record: Record) -> None:
    model = llama()
    with pytest.raises(IndexError):
        loss_sum(model, tokens() + 1000, tokens(), scale=1.0)
    assert record.open_region is None
    train_step(model)


def test_evaluation_in_bf16_does_not_call_it(record: Record) -> None:
    model, plain = llama(), build_model(SPEC, seed=0)
    with fp8_enabled(model, False):
        assert torch.equal(token_nll(model, tokens(), tokens()), token_nll(plain, tokens(), tokens()))
    assert record.calls == []
    assert record.regions == []


def test_evaluation_in_fp8_leaves_the_state_as_it_was_f8(record: Record) -> None:
    model = llama()
    train_step(model)
    before = fp8_state_dict(model)
    model.eval()
    with fp8_enabled(model, True):
        token_nll(model, tokens(), tokens())
    assert record.calls[-1][1] is False
    after = fp8_state_dict(model)
    assert all(torch.equal(before["state"][name], after["state"][name]) for name in before["state"])


def test_state_is_saved_and_restored_by_layer_f8(record: Record) -> None:
    first, second = llama(), llama()
    train_step(first)
    saved = fp8_state_dict(first)
    assert saved["state"].keys() == projections(build_model(SPEC, seed=0)).keys()
    assert all(state.tolist() == [1] for state in saved["state"].values())
    load_fp8_state_dict(second, saved)
    assert all(layer.engine.count.tolist() == [1] for layer in fp8_compute(second).layers.values())
    with pytest.raises(ValueError, match="does not fit this model"):
        load_fp8_state_dict(second, {"backend": "transformer_engine", "state": {}})


def test_flushed_share_uses_its_backward_scale(record: Record) -> None:
    model = convert_to_fp8(
        nn.ModuleDict({"q_proj": nn.Linear(16, 5, bias=False)}).bfloat16(), backend="transformer_engine"
    )
    fp8_compute(model).wrap(model["q_proj"])
    dy = torch.tensor([[0.0, 2.0**-17, -(2.0**-17), 1.01 * 2.0**-17, 1.0]]).bfloat16()
    with fp8_step(model, count_flushed=True) as step:
        model["q_proj"](torch.ones(1, 16).bfloat16()).backward(dy)
    assert step.share == 0.5
    fp8_compute(model).layers["q_proj"].engine.fp8_meta["scaling_bwd"].scale.fill_(2.0)
    with fp8_step(model, count_flushed=True) as step:
        model["q_proj"](torch.ones(1, 16).bfloat16()).backward(dy)
    assert step.share == 0.0


def test_import_problem(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    assert import_problem() is None
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", None)
    assert "ModuleNotFoundError" in str(import_problem())
