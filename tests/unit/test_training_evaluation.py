"""Perplexity over a fixed set of tokens (cases T1): counted as defined, the same at any batch size."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from training_runs import make_data, run_spec

from mpadam.model.build import build_model
from mpadam.training.evaluation import evaluate
from mpadam.training.session import open_validation

TOKENS = 1003
# 1e-6 in float32 and 1e-4 in bf16: another batch size is another order of sums inside the matrix products.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-4}


@pytest.fixture(scope="module", params=["pack", "truncate_pad"])
def validation(request, tmp_path_factory):
    data = make_data(tmp_path_factory.mktemp(request.param), sequences=request.param, documents_per_split=(40, 120))
    spec = run_spec(data, sequences=request.param, validation_tokens=2 * TOKENS)
    return spec, open_validation(data, spec.data)


def sums_by_row(model, validation):
    """(nll, tokens) of each sequence alone, by torch's own cross entropy in float64."""
    sums = []
    for batch in validation.batches(1):
        ids, labels = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.labels)
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        nll = cross_entropy(logits, labels[0, 1:], ignore_index=-100, reduction="sum")
        sums.append((nll.item(), int((labels[0, 1:] != -100).sum())))
    return sums


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_loss_is_the_same_at_any_batch_size_and_counts_each_token_once(validation, dtype):
    spec, tokens = validation
    model = build_model(spec.model, seed=0, dtype=dtype)
    with torch.no_grad():  # weights that make some texts likelier than others
        model.lm_head.weight.mul_(20)
    rows = sums_by_row(model, tokens)
    assert sum(count for _, count in rows) == TOKENS
    assert len({count for _, count in rows}) > 1
    expected = sum(nll for nll, _ in rows) / TOKENS
    for batch_size in (1, 3, 8, 1000):
        result = evaluate(model, tokens.batches(batch_size))
        assert result.tokens == TOKENS
        assert result.loss == pytest.approx(expected, rel=TOLERANCE[dtype]), f"batch size {batch_size}"
        assert result.perplexity == math.exp(result.loss)


def test_the_mean_of_batch_means_would_be_noticed(validation):
    """Control: the usual mistake lies outside the tolerance on this set, at batch sizes that do not divide it."""
    spec, tokens = validation
    model = build_model(spec.model, seed=0, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    rows = sums_by_row(model, tokens)
    expected = sum(nll for nll, _ in rows) / TOKENS
    mean_of_means = sum(nll / count for nll, count in rows if count) / len(rows)
    assert abs(mean_of_means / expected - 1) > 1e-5


def test_evaluation_leaves_the_model_as_it_was(validation):
    spec, tokens = validation
    model = build_model(spec.model, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    evaluate(model, tokens.batches(4))
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_set_without_targets_is_an_error():
    with pytest.raises(ValueError, match="no target tokens"):
        evaluate(build_model_of_nothing(), [])


def build_model_of_nothing():
    from mpadam.study.spec import ModelSpec

    sizes = {"hidden_size": 8, "intermediate_size": 8, "layers": 1, "heads": 1, "vocab_size": 8, "sequence_length": 8}
    return build_model(ModelSpec(**sizes, attention="eager"), seed=0)
