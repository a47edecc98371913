"""What is asked of Transformer Engine, against stand-in modules that record calls and refuse what it would refuse."""

import io
import sys

import pytest
import torch
from torch import Tensor, nn
from transformer_engine_stand_in import Record, stand_ins

from mpadam.model.build import build_model
from mpadam.model.capabilities import import_problem
from mpadam.model.fp8.control import fp8_compute, fp8_enabled, fp8_state_dict, fp8_step, load_fp8_state_dict
from mpadam.model.fp8.convert import convert_to_fp8, projections
from mpadam.model.fp8.scaling import Fp8Recipe
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
    record.regions.clear()
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
    record.regions.clear()
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
    record.regions.clear()
    with fp8_enabled(model, False):
        assert torch.equal(token_nll(model, tokens(), tokens()), token_nll(plain, tokens(), tokens()))
    assert record.calls == []
    assert record.regions == []


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("steps", [0, 2])
def test_evaluation_in_fp8_leaves_the_state_as_it_was_f8(record: Record, steps: int) -> None:
    """Before the first step too, when a layer of Transformer Engine has no state of its own yet."""
    model = llama()
    for _ in range(steps):
        train_step(model)
    before = fp8_state_dict(model)["state"]
    model.eval()
    with fp8_enabled(model, True), torch.no_grad():
        token_nll(model, tokens(), tokens())
        assert not same(before, fp8_state_dict(model)["state"])
    assert record.calls[-1][1] is False
    assert same(before, fp8_state_dict(model)["state"])


def test_state_is_plain_tensors_and_restored_in_place_f8(record: Record) -> None:
    """Transformer Engine refuses its own pickled state; its casts hold views of these tensors."""
    first, second = llama(), llama()
    for _ in range(2):
        train_step(first)
    saved = fp8_state_dict(first)
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert {name.rpartition(".scaling_")[0] for name in loaded["state"]} == projections(
        build_model(SPEC, seed=0)
    ).keys()
    engine = next(iter(fp8_compute(second).layers.values())).engine
    cast = engine.fp8_meta["scaling_fwd"].scale[0]
    load_fp8_state_dict(second, loaded)
    assert cast == 3
    assert same(fp8_state_dict(second)["state"], saved["state"])
    train_step(first)
    assert cast == 3
    assert same(loaded["state"], saved["state"])


@pytest.mark.parametrize("other", [Fp8Recipe(amax_history=4), None])
def test_state_of_other_layers_or_of_another_recipe_is_refused(record: Record, other: Fp8Recipe | None) -> None:
    model = llama()
    before = fp8_state_dict(model)
    saved = {"backend": "transformer_engine", "state": {}}
    if other is not None:
        saved = fp8_state_dict(convert_to_fp8(build_model(SPEC, seed=0), backend="transformer_engine", recipe=other))
    with pytest.raises(ValueError, match=r"does not fit this model: model\.layers\.0\..*amax_history, that it"):
        load_fp8_state_dict(model, saved)
    assert same(before["state"], fp8_state_dict(model)["state"])


def test_conversion_advances_no_history(record: Record) -> None:
    """With gradients enabled, leaving an autocast region advances those of all models in the process."""
    llama()
    assert record.advances == 0


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
    assert import_problem("transformer_engine.pytorch") is None
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", None)
    assert "ModuleNotFoundError" in str(import_problem("transformer_engine.pytorch"))
