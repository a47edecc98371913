"""MLPs whose width is no multiple of 16: the same model in products of other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpadam.model.build import build_model
from mpadam.model.layers import fill_up_mlps
from mpadam.model.loss import loss_sum
from mpadam.study.spec import ModelSpec
from mpadam.training.session import compute_model
from tests.unit.training_runs import make_data, run_spec

SPEC = ModelSpec(
    hidden_size=32, intermediate_size=37, layers=2, heads=2, vocab_size=97, sequence_length=16, attention="sdpa"
)


class Products(TorchDispatchMode):
    """Sizes of the matrices that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.mm.default:
            self.sizes |= {size for matrix in args for size in matrix.shape}
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("width", [37, 48])
def test_loss_and_gradients_are_those_of_the_model_as_it_is(width: int) -> None:
    plain, filled = (build_model(SPEC.model_copy(update={"intermediate_size": width}), seed=0) for _ in range(2))
    plain.float(), filled.float()
    fill_up_mlps(filled)
    assert ("forward" in vars(filled.model.layers[0].mlp.gate_proj)) is (width == 37)
    ids = torch.arange(48).view(3, 16)
    for model in (plain, filled):
        loss_sum(model, ids, ids, scale=1 / 45)[0].backward()
    for (name, a), (other, b) in zip(plain.named_parameters(), filled.named_parameters(), strict=True):
        assert name == other
        assert b.grad.is_contiguous()
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(("device", "sizes"), [("meta", {32, 80}), ("cpu", {32, 72})])
def test_i18_products_of_a_run_on_a_gpu_have_multiples_of_16(
    tmp_path_factory: pytest.TempPathFactory, device: str, sizes: set[int]
) -> None:
    spec = run_spec(make_data(tmp_path_factory.mktemp("widths")), attention="sdpa", intermediate_size=72)
    training = spec.training.model_copy(update={"device": device})
    model = compute_model(spec.model_copy(update={"training": training}))
    with Products() as products:
        model.model(input_ids=torch.zeros(2, 16, dtype=torch.int64, device=device)).last_hidden_state.sum().backward()
    assert products.sizes == sizes
