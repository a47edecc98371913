"""Attention over whole rows: Transformers' search for packed sequences, which reads the device, is left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers import modeling_flash_attention_utils as flash

from mpadam.model.build import build_model
from mpadam.model.loss import loss_sum
from mpadam.study.spec import ModelSpec


class Reads(TorchDispatchMode):
    """Counts values that are read from a tensor."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **kwargs or {})


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """FlashAttention's function, (B, L, heads, size) in and out, by torch's own."""
    assert causal
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=softmax_scale).transpose(1, 2)


def packed(*_: Any, **__: Any) -> Tensor:
    raise AssertionError("rows are taken for packed sequences")


@pytest.fixture(autouse=True)
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if FlashAttention were installed."""
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: (flash_attn_func, packed, packed, packed, packed))
    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", lambda _, name, *__, **___: name)


def spec(attention: str) -> ModelSpec:
    sizes = {"hidden_size": 32, "intermediate_size": 40, "layers": 2, "heads": 2, "vocab_size": 97}
    return ModelSpec.model_validate({**sizes, "sequence_length": 16, "attention": attention})


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash_attention_2"])
@pytest.mark.parametrize("rows", [1, 3])
def test_i18_a_forward_pass_reads_nothing_from_the_device(attention: str, rows: int) -> None:
    model = build_model(spec(attention), seed=0, dtype=torch.float32)
    ids = torch.arange(16 * rows).view(rows, 16)
    with Reads() as reads:
        loss, _ = loss_sum(model, ids, ids, scale=1.0)
        loss.backward()
    assert reads.count == 0
    reference, _ = loss_sum(build_model(spec("eager"), seed=0, dtype=torch.float32), ids, ids, scale=1.0)
    torch.testing.assert_close(loss, reference)


def test_the_model_still_names_its_own_attention() -> None:
    model = build_model(spec("sdpa"), seed=0)
    assert model.config._attn_implementation == "sdpa"
    assert {layer.self_attn.config._attn_implementation for layer in model.model.layers} == {"sdpa"}
