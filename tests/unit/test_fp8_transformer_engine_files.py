"""Our calls of Transformer Engine against its own Python files, pinned in envs/gpu.txt (issue 18, row 11).

Its native library is replaced (`transformer_engine_files`), so a CPU runs its linear layer, its autocast regions, its
histories and its handling of saved state. What is left out: the CUDA kernels, and collectives of real ranks.
"""

import inspect
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformer_engine_files
from torch import Tensor, nn
from torch import distributed as dist
from transformer_engine_stand_in import Record, stand_ins

from mpadam.model.build import build_model
from mpadam.model.fp8.control import fp8_compute, fp8_enabled, fp8_state_dict, fp8_step, load_fp8_state_dict
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.model.fp8.scaling import Fp8Recipe
from mpadam.model.loss import loss_sum, token_nll
from mpadam.study.spec import ModelSpec

pytestmark = pytest.mark.filterwarnings("error:.*deprecated and will be removed in a future release")

SPEC = ModelSpec(
    hidden_size=32, intermediate_size=53, layers=1, heads=2, vocab_size=64, sequence_length=8, attention="eager"
)


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    if "transformer_engine_torch" in sys.modules:
        pytest.skip("the real Transformer Engine is loaded in this process")
    folder = transformer_engine_files.fetched(Path(request.config.cache.mkdir("transformer_engine")))
    with pytest.MonkeyPatch.context() as patch, transformer_engine_files.loaded(folder, patch) as module:
        yield module


def layer(backend: str, recipe: Fp8Recipe, group: object = None) -> nn.ModuleDict:
    """A model of one projection, in sizes that have to be filled up."""
    linear = nn.Linear(21, 37, bias=False).bfloat16()
    linear.weight.data = torch.randn(37, 21, generator=torch.Generator().manual_seed(0)).bfloat16()
    model = convert_to_fp8(nn.ModuleDict({"q_proj": linear}), backend=backend, recipe=recipe, group=group)
    if backend == "transformer_engine":
        fp8_compute(model).wrap(model["q_proj"])
    return model


def layer_step(model: nn.ModuleDict, step: int) -> tuple[float | None, Tensor, Tensor, Tensor]:
    """The flushed share, the output and both gradients; magnitudes differ from step to step."""
    generator, size = torch.Generator().manual_seed(step), 10.0 ** (-step % 5)
    x = (torch.randn(5, 21, generator=generator) * size).bfloat16().requires_grad_()
    dy = (torch.randn(5, 37, generator=generator) * 1e-4 * size).bfloat16()
    model.zero_grad()
    with fp8_step(model, count_flushed=True) as counted:
        y = model["q_proj"](x)
        y.backward(dy)
    return counted.share, y.detach(), x.grad, model["q_proj"].weight.grad


def test_a_layer_computes_what_the_emulation_computes(engine: ModuleType) -> None:
    """The same scales bit for bit, while histories fill up and large magnitudes leave them; the same casts."""
    recipe = Fp8Recipe(amax_history=4, margin=1)
    real, emulated = layer("transformer_engine", recipe), layer("emulated", recipe)
    for step in range(8):
        (share, *found), (expected_share, *expected) = layer_step(real, step), layer_step(emulated, step)
        assert share == expected_share
        for x, y in zip(found, expected, strict=True):  # the one scales before it sums, the other after
            torch.testing.assert_close(x, y, rtol=2**-7, atol=1e-4 * y.abs().max().item())
        state = fp8_state_dict(real)["state"]
        scales = [*state["q_proj.scaling_fwd.scale"][:2], state["q_proj.scaling_bwd.scale"][0]]
        assert torch.equal(torch.stack(scales), fp8_compute(emulated).state.scale)


def test_its_forward_products_alone_have_fast_accumulation(engine: ModuleType) -> None:
    """What docs/fp8.md says about sums (issue 18, row 5); True: partial sums are promoted to float32."""
    products = sys.modules["transformer_engine_torch"].products
    products.clear()
    layer_step(layer("transformer_engine", Fp8Recipe()), 0)
    assert products == [False, True, True]


def test_magnitudes_are_reduced_over_the_group(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a second rank of the group had seen twice as much; no other group is asked."""
    group, recipe = object(), Fp8Recipe()
    alone, shared = layer("transformer_engine", recipe), layer("transformer_engine", recipe, group)
    layer_step(alone, 0)

    def all_reduce(x: Tensor, op: object = dist.ReduceOp.SUM, **options: object) -> None:
        assert options["group"] is group
        if op == dist.ReduceOp.MAX:  # the other is the count of flushed values
            x.mul_(2)

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1 if group is None else 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    layer_step(shared, 0)
    for name, slots in (("q_proj.scaling_fwd.scale", 2), ("q_proj.scaling_bwd.scale", 1)):
        own, other = (fp8_state_dict(model)["state"][name][:slots] for model in (shared, alone))
        assert torch.equal(2 * own, other)


def test_it_refuses_the_pickled_state_that_it_saves(engine: ModuleType) -> None:
    """Issue 18, row 1: what the stand-in refuses too."""
    model = layer("transformer_engine", Fp8Recipe())
    layer_step(model, 0)
    inner = fp8_compute(model).layers["q_proj"].engine
    with pytest.raises(RuntimeError, match="Refusing to load pickled Transformer Engine extra state"):
        inner.set_extra_state(inner.get_extra_state())


def llama() -> nn.Module:
    return convert_to_fp8(build_model(SPEC, seed=0), backend="transformer_engine")


def train(model: nn.Module, steps: range) -> None:
    """Plain gradient descent on a batch of each step."""
    for step in steps:
        tokens = torch.randint(0, 64, (3, 8), generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        with fp8_step(model):
            loss_sum(model, tokens, tokens, scale=1 / 24)[0].backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(weight.grad, alpha=0.1)


def everything(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in (model.state_dict() | fp8_state_dict(model)["state"]).items()}


def test_a_resumed_run_goes_on_bit_for_bit_f8(engine: ModuleType) -> None:
    """Issue 18, row 1. Each model advances the histories of all in the process, so they train one after the other."""
    first = llama()
    train(first, range(2))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "fp8": fp8_state_dict(first)}, file)
    train(first, range(2, 4))
    expected = everything(first)
    file.seek(0)
    saved, resumed = torch.load(file, weights_only=True), llama()
    resumed.load_state_dict(saved["model"])
    load_fp8_state_dict(resumed, saved["fp8"])
    evaluate_in_fp8(resumed)
    train(resumed, range(2, 4))
    found = everything(resumed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def evaluate_in_fp8(model: nn.Module) -> None:
    tokens, before = torch.full((5, 8), 7), everything(model)
    model.eval()
    with torch.no_grad(), fp8_enabled(model, True):
        token_nll(model, tokens, tokens)
        assert any(not torch.equal(before[name], x) for name, x in everything(model).items())
    model.train()
    assert all(torch.equal(before[name], x) for name, x in everything(model).items())


def test_evaluation_before_the_first_step_changes_nothing_f8(engine: ModuleType) -> None:
    evaluate_in_fp8(llama())


def test_the_stand_in_asks_for_nothing_that_is_not_there(engine: ModuleType) -> None:
    """Names and keywords that the tests' stand-in accepts are accepted by Transformer Engine."""
    modules = stand_ins(Record())
    ours, recipes = vars(modules["transformer_engine.pytorch"]), vars(modules["transformer_engine.common.recipe"])
    real = [engine.Linear, engine.autocast, engine.Linear.init_fp8_metadata]
    stand_in = [ours["Linear"], ours["autocast"], ours["Linear"].init_fp8_metadata]
    for there, here in zip(real, stand_in, strict=True):
        assert inspect.signature(here).parameters.keys() <= inspect.signature(there).parameters.keys()
    definitions = sys.modules["transformer_engine.common.recipe"]
    assert recipes["DelayedScaling"].known <= inspect.signature(definitions.DelayedScaling).parameters.keys()
    assert vars(recipes["Format"]).keys() <= definitions.Format.__members__.keys()
