"""A trained model knows more than how frequent each token is."""

import pytest
from training_runs import make_data, make_run, summary_of, train


@pytest.mark.parametrize(("masters", "name"), [("fp32", "adamw"), ("bf16", "adamw"), ("bf16", "m-plus-adam")])
def test_validation_loss_is_below_the_unigram_entropy(masters, name, tmp_path):
    data = make_data(tmp_path)
    values = {"lr": 1e-2, "lr_mult": 1e-2}
    folder = make_run(tmp_path / "run", data, masters=masters, state_dtype=masters, name=name, steps=60, values=values)
    assert train(folder) == 0
    entropy = data.manifest["unigram_entropy"]
    assert summary_of(folder)["val_loss"] < entropy - 1.0
    assert summary_of(folder)["validation"][0]["loss"] > entropy - 1.0  # it did not begin there
