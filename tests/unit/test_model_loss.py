"""The loss head: value and gradient of plain cross entropy, in chunks or whole."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from mpadam.model import loss as head
from mpadam.model.build import build_model
from mpadam.model.loss import loss_sum, token_nll
from mpadam.study.spec import ModelSpec

SPEC = ModelSpec(
    hidden_size=32, intermediate_size=40, layers=1, heads=2, vocab_size=97, sequence_length=16, attention="eager"
)


def batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 97, (5, 16), generator=generator)
    labels = ids.clone()
    for row, length in enumerate((16, 1, 7, 2, 12)):
        labels[row, length:] = -100
    return ids, labels


def plain(model, ids, labels):
    """Sum of cross entropies over float32 logits, by torch's own function and Transformers' own forward."""
    logits = model(ids).logits[:, :-1].float()
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


# One chunk, chunks of 10 positions (the last one shorter), and of one.
@pytest.mark.parametrize("chunk_bytes", [2**28, 10 * 97 * 4, 1])
def test_value_and_gradients_are_those_of_cross_entropy(chunk_bytes, monkeypatch):
    monkeypatch.setattr(head, "CHUNK_BYTES", chunk_bytes)
    model = build_model(SPEC, seed=1, dtype=torch.float32)
    ids, labels = batch()
    counted = int((labels[:, 1:] != -100).sum())
    assert counted == 15 + 0 + 6 + 1 + 11
    loss, total = loss_sum(model, ids, labels, scale=1 / counted)
    reference = plain(model, ids, labels)
    assert total.dtype == torch.float64
    assert total.item() == pytest.approx(reference.item(), rel=1e-6)
    assert loss.item() == pytest.approx(reference.item() / counted, rel=1e-6)
    ours, theirs = gradients(model, loss), gradients(model, reference / counted)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=2e-8, msg=lambda m, n=name: f"{n}: {m}")


def test_bf16_models_are_judged_by_float32_logits():
    model = build_model(SPEC, seed=1, dtype=torch.bfloat16)
    ids, labels = batch()
    logits = model(ids).logits[:, :-1]
    exact = cross_entropy(logits.double().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none")
    rounded = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none")
    ours = token_nll(model, ids, labels)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=1e-6)
    assert (rounded.double() - exact).abs().max() > 1e-3  # what bf16 arithmetic would have given


def test_positions_that_do_not_count_contribute_nothing():
    model = build_model(SPEC, seed=1, dtype=torch.float32)
    ids, labels = batch()
    nll = token_nll(model, ids, labels)
    assert nll.shape == (5 * 15,)
    assert torch.equal(nll == 0, labels[:, 1:].flatten() == -100)


def test_the_gradient_follows_what_is_done_with_the_loss():
    model = build_model(SPEC, seed=1, dtype=torch.float32)
    once = gradients(model, loss_sum(model, *batch(), scale=0.1)[0])
    fourfold = gradients(model, 4 * loss_sum(model, *batch(), scale=0.1)[0])
    for name, gradient in once.items():
        assert torch.equal(fourfold[name], 4 * gradient)  # exact, 4 being a power of two


def test_a_logit_that_is_not_finite_shows_in_the_loss():
    model = build_model(SPEC, seed=1, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight[3, 0] = float("inf")
    assert not torch.isfinite(loss_sum(model, *batch(), scale=1.0)[0])
