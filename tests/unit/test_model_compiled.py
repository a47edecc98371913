"""Compiled pieces of forward and backward pass (issue 18, item 6), by the CPU's compiler: the numbers of eager code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama import modeling_llama

from mpadam.data import TokenData
from mpadam.model import compiled as pieces
from mpadam.model.build import build_model
from mpadam.model.compiled import compile_layers, compiled
from mpadam.model.fp8.control import compile_casts
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.model.fp8.products import PRODUCTS, magnitude
from mpadam.model.loss import chunk_loss, loss_sum, token_nll
from mpadam.study.auto import Auto, auto_here, recorded_auto
from mpadam.study.spec import ModelSpec, read_run_file
from mpadam.training import machine
from tests.unit.training_runs import (
    LENGTH,
    StopAfter,
    assert_same_run,
    make_data,
    make_run,
    metrics_of,
    summary_of,
    train,
)

#: Shapes of the run below, so that both share graphs.
ROWS, HIDDEN, INTERMEDIATE, HEADS, VOCABULARY = 8, 32, 72, 2, 300
RUN = {"attention": "sdpa", "steps": 4, "evaluate_every": None, "evaluation_batch_size": 8, "validation_tokens": 512}
SPEC = ModelSpec(
    hidden_size=32, intermediate_size=40, layers=2, heads=2, vocab_size=97, sequence_length=16, attention="sdpa"
)
ONE_ROUNDING = 2.0**-7  # of bf16: from a number to its neighbour, as a share of it


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    return make_data(tmp_path_factory.mktemp("data"))


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().requires_grad_()


def heads(seed: int) -> Tensor:
    return numbers(ROWS, LENGTH, HEADS, HIDDEN // HEADS, seed=seed).transpose(1, 2).detach().requires_grad_()


def layer_arguments() -> dict[str, tuple[Any, ...]]:
    x, y = (numbers(ROWS, LENGTH, HIDDEN, seed=seed) for seed in (0, 1))
    gate, up = (numbers(ROWS, LENGTH, INTERMEDIATE, seed=seed) for seed in (2, 3))
    angles = torch.linspace(0, 9, LENGTH * HIDDEN // HEADS).view(1, LENGTH, HIDDEN // HEADS)
    return {
        "norm": (x, numbers(HIDDEN, seed=4), 1e-6),
        "add_norm": (x, y, numbers(HIDDEN, seed=4), 1e-6),
        "gated": (gate, up),
        "rotary": (heads(5), heads(6), angles.cos().bfloat16(), angles.sin().bfloat16()),
    }


def results(piece: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Tensor]:
    """What comes out, and the gradients of what goes in."""
    out = piece(*arguments)
    out = out if isinstance(out, tuple) else (out,)
    inputs = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
    given = [numbers(*o.shape, seed=7 + i).detach() for i, o in enumerate(out)]
    return [*out, *torch.autograd.grad(out, inputs, given)]


@pytest.mark.parametrize("name", ["norm", "add_norm", "gated", "rotary"])
def test_i18_pieces_of_a_layer_give_what_eager_code_gives(name: str) -> None:
    """Both round the same float32 numbers, but for the order of sums: to neighbours, if those are near a tie. A norm
    rounds twice, and so does a product of what was rounded."""
    piece, arguments = getattr(pieces, name), layer_arguments()[name]
    for ours, eager in zip(results(compiled(piece, "cpu"), arguments), results(piece, arguments), strict=True):
        assert ours.dtype == eager.dtype == torch.bfloat16
        scale = eager.float().abs().max().item()
        torch.testing.assert_close(ours, eager, rtol=2 * ONE_ROUNDING, atol=ONE_ROUNDING * 2**-7 * scale)


def test_i18_eager_pieces_are_transformers_own_arithmetic() -> None:
    arguments = layer_arguments()
    x, weight, eps = arguments["norm"]
    theirs = modeling_llama.LlamaRMSNorm(HIDDEN, eps)
    theirs.weight = torch.nn.Parameter(weight.detach())
    assert torch.equal(pieces.norm(x, weight, eps), theirs(x))
    rotated = zip(
        pieces.rotary(*arguments["rotary"]), modeling_llama.apply_rotary_pos_emb(*arguments["rotary"]), strict=True
    )
    assert all(torch.equal(ours, own) for ours, own in rotated)


def test_i18_the_compiled_loss_gives_what_eager_code_gives() -> None:
    """Sums of float32 in another order; the gradient is rounded to bf16 once."""
    logits = 4 * numbers(ROWS * (LENGTH - 1), VOCABULARY, seed=8).detach()
    targets = torch.arange(len(logits)) % VOCABULARY
    targets[::3] = -100
    scale = torch.tensor(1 / 165)
    total, gradient = compiled(chunk_loss, "cpu")(logits, targets, scale)
    eager_total, eager_gradient = chunk_loss(logits, targets, scale.item())
    torch.testing.assert_close(total, eager_total, rtol=1e-6, atol=0)
    # A target's own probability loses the digits that it shares with 1.
    torch.testing.assert_close(gradient, eager_gradient, rtol=ONE_ROUNDING, atol=2**-22 * scale.item())
    assert not gradient[::3].any()


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_i18_compiled_casts_of_native_fp8_give_the_same_codes_and_magnitude(fmt: str) -> None:
    x, scale, native = numbers(48, 32, seed=9).detach() * 300, torch.tensor(1.7), PRODUCTS["native"]
    x[0, :4] = torch.tensor([0.0, -0.0, 2.0**-20, 1e30])
    assert native.whole is not None
    for values in (x, torch.where(x == 0, torch.nan, x), torch.where(x == 0, -torch.inf, x)):
        ours, amax = compiled(native.whole, "cpu")(values, scale, fmt)
        eager = native.cast(values, scale, magnitude(values), fmt)
        assert torch.equal(ours.view(torch.uint8), eager.view(torch.uint8))
        torch.testing.assert_close(amax, magnitude(values), rtol=0, atol=0, equal_nan=True)


def test_i18_a_model_calls_the_pieces_and_has_the_gradients_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled here; FP8 casts among them. Afterwards other models of the process are what they were."""
    called: list[str] = []

    def plainly(piece: Callable[..., Any], device_type: str) -> Callable[..., Any]:
        return lambda *arguments: called.append(piece.__name__) or piece(*arguments)

    monkeypatch.setattr(pieces, "_compiled", plainly)
    plain, ours = (convert_to_fp8(build_model(SPEC, seed=0), backend="native") for _ in range(2))
    compile_layers(ours)
    compile_casts(ours)
    own = modeling_llama.apply_rotary_pos_emb
    ids = torch.arange(48).view(3, 16)
    for model, flag in ((plain, False), (ours, True)):
        loss_sum(model, ids, ids, scale=1 / 45, compiled=flag)[0].backward()
    assert {name: called.count(name) for name in set(called)} == {
        **{"norm": 3, "add_norm": 2, "gated": 2, "rotary": 2, "chunk_loss": 1},
        "native_whole": 2 * (4 + 7 + 7),  # inputs that layers share, weights, gradients
    }
    assert modeling_llama.apply_rotary_pos_emb is own
    for (name, a), (other, b) in zip(plain.named_parameters(), ours.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(a.grad, b.grad), name
    assert torch.equal(token_nll(plain, ids, ids), token_nll(ours, ids, ids, compiled=True))


def forget_what_is_compiled() -> None:
    """As in a process that begins: torch's cache on disk stays."""
    pieces._compiled.cache_clear()
    torch._dynamo.reset()


@pytest.mark.slow
def test_i18_a_run_with_compiled_passes_resumes_bit_for_bit_and_learns_as_the_eager_one(
    tmp_path: Path, data: TokenData
) -> None:
    whole, parts, eager = (
        make_run(tmp_path / name, data, compile_passes=name != "eager", **RUN) for name in ("whole", "parts", "eager")
    )
    assert train(whole) == train(eager) == 0
    assert train(parts, stop=StopAfter(2)) == 75
    forget_what_is_compiled()
    assert train(parts) == 0
    assert_same_run(parts, whole)
    assert summary_of(whole)["hash"] != summary_of(eager)["hash"]
    for ours, plain in zip(metrics_of(whole), metrics_of(eager), strict=True):
        assert ours["loss"] == pytest.approx(plain["loss"], rel=ONE_ROUNDING)


# --- what run.yaml says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "compile", "works", "passes"),
    [("cuda", True, True, True), ("cuda", "auto", True, True), ("cuda", "auto", False, False),
     ("cuda", False, True, False), ("cpu", True, True, False), ("cpu", "auto", True, False)],
)  # fmt: skip
def test_i18_training_compile_takes_the_passes_along_on_cuda_alone(
    device: str, compile: Any, works: bool, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpadam.study.auto._compiles", lambda _: works)
    training = {"device": device, "fp8_backend": "native", "compile": compile, "bf16_products": "float32"}
    assert auto_here({"regime": {"compute": "bf16"}, "training": training}).compile_passes is passes


def test_i18_a_run_file_of_before_keeps_its_hash_and_its_eager_passes(tmp_path: Path, data: TokenData) -> None:
    path = make_run(tmp_path / "run", data, compile=True)
    run = read_run_file(path / "run.yaml")
    assert "compile_passes" not in (path / "run.yaml").read_text()
    recorded = run.spec.model_dump(mode="json")["training"]
    assert recorded_auto(recorded) == Auto(compile=True)
    changed = run.spec.model_copy(update={"training": run.spec.training.model_copy(update={"compile_passes": True})})
    assert changed.hash != run.spec.hash
    assert recorded_auto(changed.model_dump(mode="json")["training"]).compile_passes is True


def test_i18_compiled_passes_are_refused_where_nothing_compiles(
    tmp_path: Path, data: TokenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path / "run", data, compile_passes=True)
    monkeypatch.setattr(machine, "compile_problem", lambda _: "there is no Triton for this device")
    with pytest.raises(ValueError, match=r"training\.compile: run\.yaml says true, but there is no Triton"):
        train(path)
