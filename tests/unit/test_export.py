"""`mpadam export`: what it writes loads with `from_pretrained`, offline, and is the run that was judged."""

import json
import math
import os
import socket
from pathlib import Path

import pytest
import torch
from training_runs import StopAfter, make_data, make_run, summary_of, train, weights_of
from transformers import AutoTokenizer, LlamaForCausalLM

from mpadam.cli import main
from mpadam.data.tokenizer import load_tokenizer
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import read_run_file
from mpadam.training import loop
from mpadam.training.evaluation import evaluate
from mpadam.training.session import open_data, open_validation


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Any attempt to open a connection is an error."""

    def refused(*_args, **_kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def validation_loss(folder: Path, exported: Path, attention: str) -> float:
    """The loss of the exported model on the run's validation tokens."""
    run = read_run_file(folder / "run.yaml")
    model = LlamaForCausalLM.from_pretrained(exported, attn_implementation=attention)
    tokens = open_validation(open_data(run, RunFolder(folder)), run.spec.data)
    return evaluate(model, tokens.batches(run.spec.training.evaluation_batch_size)).loss


@pytest.mark.parametrize(("masters", "compute"), [("fp32", "bf16"), ("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "fp8")])
def test_the_exported_model_gives_the_runs_own_validation_loss(tmp_path, data, masters, compute, capsys):
    folder = make_run(tmp_path / "run", data, masters=masters, compute=compute, sequences="pack")
    assert train(folder) == 0
    out = tmp_path / "exported" / "model"
    assert main(["export", str(folder), str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    summary = summary_of(folder)
    assert validation_loss(folder, out, "eager") == summary["val_loss"]
    assert validation_loss(folder, out, "sdpa") == pytest.approx(summary["val_loss"], rel=1e-4)
    assert json.loads((out / "run.json").read_text()) == summary
    loaded = LlamaForCausalLM.from_pretrained(out)
    assert loaded.dtype == torch.bfloat16
    trained = weights_of(folder)
    assert all(torch.equal(value, trained[name]) for name, value in loaded.state_dict().items())
    files = {path.name for path in out.iterdir()}
    assert "model.safetensors" in files
    assert not [name for name in files if name.endswith((".bin", ".pt", ".tmp"))]


def test_the_exported_tokenizer_is_the_one_of_the_data(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=1)
    assert train(folder) == 0
    assert main(["export", str(folder), str(tmp_path / "out")]) == 0
    own, loaded = load_tokenizer(data.folder / "tokenizer"), AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The weight moves the mantissa. Ein Gewicht, 3 Zeichen: äöü!"
    assert loaded(text)["input_ids"] == own.encode([text])[0]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    model = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.eos_token_id == model.generation_config.eos_token_id == loaded.eos_token_id == own.eos_id
    assert model.config.pad_token_id == loaded.pad_token_id == own.pad_id
    ids = loaded("The weight", return_tensors="pt")["input_ids"]
    made = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert made.shape[1] <= ids.shape[1] + 4


def test_a_run_that_has_not_ended_or_diverged_is_no_result(tmp_path, data, monkeypatch, capsys):
    folder = make_run(tmp_path / "run", data)
    assert train(folder, stop=StopAfter(2)) == 75
    assert main(["export", str(folder), str(tmp_path / "out")]) == 2
    assert "train it first" in capsys.readouterr().err
    good = loop.backward

    def bad(session, step):
        gradients = good(session, step)
        gradients.values[0] = math.nan
        return gradients

    monkeypatch.setattr(loop, "backward", bad)
    assert train(folder) == 0
    for command in (["export", str(folder), str(tmp_path / "out")], ["evaluate", "--run-dir", str(folder)]):
        assert main(command) == 2
        assert "diverged at step 3" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_nothing_half_made_is_left(tmp_path, data, monkeypatch, capsys):
    folder = make_run(tmp_path / "run", data, steps=1)
    assert train(folder) == 0
    (tmp_path / "there").mkdir()
    assert main(["export", str(folder), str(tmp_path / "there")]) == 2
    assert "exists" in capsys.readouterr().err
    assert list((tmp_path / "there").iterdir()) == []

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    assert main(["export", str(folder), str(tmp_path / "out")]) == 2
    assert "No space left" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "there"]


def test_issue_21_files_of_a_run_and_of_its_export_have_the_permissions_that_the_umask_leaves(tmp_path, data):
    """safetensors writes through a temporary file that only its owner may read, and model.safetensors stayed so."""
    before = os.umask(0o027)
    try:
        folder = make_run(tmp_path / "run", data, steps=1)
        assert train(folder) == 0
        assert main(["export", str(folder), str(tmp_path / "out")]) == 0
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for part in (folder, tmp_path / "out") for path in part.rglob("*")}
    assert {path.name for path in modes} > {"model.safetensors", "tokenizer.json", "summary.json", "state.pt"}
    assert {path: oct(mode) for path, mode in modes.items() if mode != (0o750 if path.is_dir() else 0o640)} == {}


def test_another_tokenizer_is_noticed(tmp_path, data, capsys):
    other = make_data(tmp_path / "other", vocab_size=280)
    folder = make_run(tmp_path / "run", data, steps=1)
    assert train(folder) == 0
    text = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(text.replace(str(data.folder.resolve()), str(other.folder.resolve())))
    assert main(["export", str(folder), str(tmp_path / "out")]) == 2
    assert "was trained with" in capsys.readouterr().err
