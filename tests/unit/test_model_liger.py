"""`liger: true`: what is asked of Liger, against a stand-in that patches what the real package patches."""

from __future__ import annotations

import inspect
import sys
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama import modeling_llama

from mpadam.model.build import build_model
from mpadam.model.fp8.linear import Fp8Linear
from mpadam.model.layers import apply_liger
from mpadam.model.loss import loss_sum
from mpadam.study.spec import ModelSpec, RunSpec
from mpadam.training.session import compute_model
from tests.unit.training_runs import make_data, run_spec

SPEC = ModelSpec.model_validate(
    {"hidden_size": 32, "intermediate_size": 40, "layers": 2, "heads": 2, "vocab_size": 97, "sequence_length": 16}
    | {"attention": "sdpa"}
)
ROTARY = modeling_llama.apply_rotary_pos_emb


class Stand:
    """Liger 0.8.5: the same signature, the same names replaced in the process, the same methods bound to modules."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def apply_liger_kernel_to_llama(
        self,
        *,
        rope: bool = True,
        cross_entropy: bool = False,
        fused_linear_cross_entropy: bool = True,
        rms_norm: bool = True,
        swiglu: bool = True,
        model: Any = None,
    ) -> None:
        assert model is not None
        assert rope
        assert rms_norm
        assert swiglu
        assert not cross_entropy, "replaces torch's cross entropy in the whole process"
        assert not fused_linear_cross_entropy, "replaces the model's forward pass"
        modeling_llama.apply_rotary_pos_emb = self.rotary
        modeling_llama.LlamaRMSNorm = type("LigerRMSNorm", (nn.Module,), {})
        modeling_llama.LlamaMLP = type("LigerSwiGLUMLP", (nn.Module,), {})
        base = getattr(model, model.base_model_prefix, model)
        for norm in [base.norm, *(n for x in base.layers for n in (x.input_layernorm, x.post_attention_layernorm))]:
            norm.forward = MethodType(self.norm, norm)
        for layer in base.layers:
            layer.mlp.forward = MethodType(self.mlp, layer.mlp)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        self.calls.append("rotary")
        return ROTARY(q, k, cos, sin, *rest)

    def norm(self, module: Any, x: Tensor) -> Tensor:
        self.calls.append("norm")
        return type(module).forward(module, x)

    def mlp(self, module: Any, x: Tensor) -> Tensor:
        self.calls.append("mlp")
        return module.down_proj(functional.silu(module.gate_proj(x)) * module.up_proj(x))


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand, package = Stand(), ModuleType("liger_kernel.transformers")
    package.apply_liger_kernel_to_llama = stand.apply_liger_kernel_to_llama  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package)
    return stand


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    return run_spec(make_data(tmp_path_factory.mktemp("liger")), compute="fp8", liger=True, attention="sdpa")


def names() -> dict[str, Any]:
    return {name: getattr(modeling_llama, name) for name in ("apply_rotary_pos_emb", "LlamaRMSNorm", "LlamaMLP")}


def loss_of(model: Any, vocab_size: int = 97) -> Tensor:
    ids = torch.arange(48).view(3, 16) % vocab_size
    loss, _ = loss_sum(model, ids, ids, scale=1 / 45)
    loss.backward()
    return loss


def test_i18_liger_true_is_applied_to_the_model_of_a_run_after_its_conversion_to_fp8(
    liger: Stand, spec: RunSpec
) -> None:
    model = compute_model(spec)
    loss_of(model)
    assert {name: liger.calls.count(name) for name in ("rotary", "norm", "mlp")} == {"rotary": 2, "norm": 5, "mlp": 2}
    assert all(isinstance(layer.mlp.gate_proj, Fp8Linear) for layer in model.model.layers)


def test_without_it_liger_is_not_asked(liger: Stand, spec: RunSpec) -> None:
    plain = spec.model_copy(update={"model": spec.model.model_copy(update={"liger": False})})
    loss_of(compute_model(plain))
    assert liger.calls == []


def test_names_of_parameters_loss_and_gradients_stay(liger: Stand) -> None:
    plain, fused = build_model(SPEC, seed=0), apply_liger(build_model(SPEC, seed=0))
    assert torch.equal(loss_of(plain), loss_of(fused))
    pairs = zip(plain.named_parameters(), fused.named_parameters(), strict=True)
    assert all(a == b and torch.equal(x.grad, y.grad) for (a, x), (b, y) in pairs)


def test_nothing_of_the_process_stays_replaced(liger: Stand) -> None:
    before = names()
    fused, plain = apply_liger(build_model(SPEC, seed=0)), build_model(SPEC, seed=0)
    assert names() == before
    loss_of(fused)
    liger.calls.clear()
    loss_of(plain)
    assert liger.calls == []
    with pytest.raises(IndexError):
        fused.model(input_ids=torch.tensor([[97]]))
    assert names() == before


def test_the_stand_in_has_the_signature_of_the_real_one() -> None:
    real = pytest.importorskip("liger_kernel.transformers", exc_type=ImportError)
    assert inspect.signature(Stand().apply_liger_kernel_to_llama).parameters.keys() == (
        inspect.signature(real.apply_liger_kernel_to_llama).parameters.keys()
    )
    before, model = names(), build_model(SPEC, seed=0)
    apply_liger(model)
    assert names() == before
    assert {layer.mlp._get_name() for layer in model.model.layers} == {"LigerSwiGLUMLP"}
    assert model.model.norm._get_name() == "LigerRMSNorm"
    assert "forward" not in vars(model)
