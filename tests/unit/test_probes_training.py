"""Probes of updates while training: no bit of the run changes, and a stopped run has the lines of a whole one."""

import json
import math

import pytest
import torch
from torch.nn import functional
from training_ranks import run_ranks, train_on
from training_runs import StopAfter, assert_same_run, make_data, make_run, summary_of, train, weights_of

from mpadam.probes.survival import BINS, survival_record
from mpadam.stored import sha256
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import read_run_file, write_run_file
from mpadam.training import loop
from mpadam.training.session import open_session

EVERY = 2
#: kinds of master, write-back, state, gradient and compute
RUNS = {
    "bf16-bf16": {"name": "m-plus-adam"},
    "fp32, several micro-batches": {"masters": "fp32", "name": "adamw", "state_dtype": "fp32", "micro_batch_size": 4},
    "fp8-fp8": {"masters": "fp8", "compute": "fp8", "name": "m-plus-adam-sr", "micro_batch_size": 4},
    "fp32-fp8, evaluated in fp8": {"masters": "fp32", "compute": "fp8", "name": "adamw", "fp8_eval": True},
    "nvfp4-bf16": {"masters": "nvfp4", "name": "m-plus-adam-kahan"},
    "persistent shadow": {"masters": "fp8", "name": "madam", "shadow": "persistent", "values": {"lr": 1e-2}},
    "apollo": {"name": "m-plus-adam-apollo-e", "gradient_dtype": "fp32"},
    "looked at seldom": {"name": "m-plus-adam", "check_nonfinite_every": 5, "log_every": 5},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def probed(folder, data, *, every=EVERY, **changes):
    """A run folder whose updates are looked at."""
    make_run(folder, data, **changes)
    run = read_run_file(folder / "run.yaml")
    write_run_file(folder / "run.yaml", run.model_copy(update={"probe_every": every}))
    return folder


def lines_of(folder):
    return [json.loads(line) for line in (folder / "probes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_has_the_same_bits_with_and_without_looks(kind, tmp_path, data):
    plain = make_run(tmp_path / "plain", data, **RUNS[kind])
    looked = probed(tmp_path / "looked", data, **RUNS[kind])
    assert train(plain) == train(looked) == 0
    assert_same_run(looked, plain)
    assert summary_of(looked)["probes_sha256"] == sha256(looked / "probes.jsonl")
    assert "probes_sha256" not in summary_of(plain)
    assert not (plain / "probes.jsonl").exists()
    assert [line["step"] for line in lines_of(looked)] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("kind", ["bf16-bf16", "fp8-fp8", "nvfp4-bf16", "apollo"])
def test_stopped_again_and_again_it_has_the_same_lines(kind, tmp_path, data):
    whole, pieces = (probed(tmp_path / name, data, **RUNS[kind]) for name in ("whole", "pieces"))
    assert train(whole) == 0
    assert [train(pieces, stop=StopAfter(3)) for _ in range(4)] == [75, 75, 75, 0]
    assert (pieces / "probes.jsonl").read_bytes() == (whole / "probes.jsonl").read_bytes()
    assert_same_run(pieces, whole)


def test_lines_after_the_last_checkpoint_are_cut_off_and_made_again(tmp_path, data, monkeypatch):
    whole, killed = (probed(tmp_path / name, data, checkpoint_every=3) for name in ("whole", "killed"))
    good = loop.backward

    def crash(session, step):
        if step == 9:
            raise RuntimeError("the power is gone")
        return good(session, step)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "backward", crash)
        with pytest.raises(RuntimeError, match="power"):
            train(killed)
    assert [line["step"] for line in lines_of(killed)] == [2, 4, 6, 8]  # the checkpoint is that of step 6
    assert train(whole) == train(killed) == 0
    assert (killed / "probes.jsonl").read_bytes() == (whole / "probes.jsonl").read_bytes()


def test_lost_lines_are_made_again(tmp_path, data):
    """A checkpoint whose lines are gone does not count, as with metrics."""
    whole, lost = (probed(tmp_path / name, data) for name in ("whole", "lost"))
    assert train(whole) == 0
    assert train(lost, stop=StopAfter(6)) == 75
    (lost / "probes.jsonl").unlink()
    assert train(lost) == 0
    assert (lost / "probes.jsonl").read_bytes() == (whole / "probes.jsonl").read_bytes()


def test_no_longer_asked_for(tmp_path, data):
    """Lines that no checkpoint knows of go; those that one knows of stay, and nothing is added."""
    folder = probed(tmp_path / "run", data, checkpoint_every=100)
    (folder / "probes.jsonl").write_text('{"step": 2}\n')
    run = read_run_file(folder / "run.yaml")
    write_run_file(folder / "run.yaml", run.model_copy(update={"probe_every": None}))
    assert train(folder, stop=StopAfter(3)) == 75
    assert not (folder / "probes.jsonl").exists()
    write_run_file(folder / "run.yaml", run.model_copy(update={"probe_every": 4}))
    assert train(folder, stop=StopAfter(2)) == 75
    write_run_file(folder / "run.yaml", run.model_copy(update={"probe_every": None}))
    assert train(folder) == 0
    assert [line["step"] for line in lines_of(folder)] == [4]


def test_another_run_discards_the_lines(tmp_path, data):
    folder = probed(tmp_path / "run", data)
    assert train(folder) == 0
    probed(folder, data, every=4, seed=1)
    assert train(folder, replace=True) == 0
    assert [line["step"] for line in lines_of(folder)] == [4, 8]


def test_two_ranks(tmp_path, data):
    """Rank 0 writes; the run keeps its bits; the loss after the step is that of the whole global batch."""
    changes = {"name": "m-plus-adam-sr", "masters": "fp8", "compute": "fp8", "micro_batch_size": 2}
    alone = probed(tmp_path / "alone", data, **changes)
    looked = probed(tmp_path / "looked", data, **changes)
    plain = make_run(tmp_path / "plain", data, **changes)
    assert train(alone) == 0
    assert run_ranks(2, lambda ranks: [train_on(ranks, folder) for folder in (looked, plain)]) == [[0, 0], [0, 0]]
    assert_same_run(looked, plain)
    for line, other in zip(lines_of(looked), lines_of(alone), strict=True):
        assert line["loss"]["after"] == pytest.approx(other["loss"]["after"], rel=1e-3)
        assert line["survival"].keys() == other["survival"].keys()


def test_the_loss_after_the_step_is_that_of_the_weights_the_run_ends_with(tmp_path, data):
    """Against Transformers' own logits and torch's cross entropy, at the last step of a float32 run."""
    folder = probed(tmp_path / "run", data, every=10, micro_batch_size=4)
    assert train(folder) == 0
    (line,) = lines_of(folder)
    session = open_session(read_run_file(folder / "run.yaml"), RunFolder(tmp_path / "elsewhere"), data)
    session.model.load_state_dict(weights_of(folder))
    batch = session.batches.batch(9)
    tokens, labels = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.labels)
    with torch.no_grad():
        logits = session.model(input_ids=tokens).logits[:, :-1].float()
    expected = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    assert line["loss"]["after"] == pytest.approx(expected.item(), rel=1e-5)
    assert line["loss"]["before"] == summary_of(folder)["train_loss"]
    assert line["loss"]["after"] != line["loss"]["before"]


def test_a_run_that_diverges_at_a_look_leaves_no_line_of_it(tmp_path, data, monkeypatch):
    good = loop.backward

    def infinite(session, step):
        gradients = good(session, step)
        if step == 4:
            gradients.values[1] = math.inf
            gradients.tensors[0].fill_(math.inf)
        return gradients

    monkeypatch.setattr(loop, "backward", infinite)
    folder = probed(tmp_path / "run", data, check_nonfinite_every=100, log_every=100, evaluate_every=None)
    assert train(folder) == 0
    assert summary_of(folder)["diverged"]["step"] == 4
    assert [line["step"] for line in lines_of(folder)] == [2]


def test_a_line_has_every_role_every_weight_once_and_is_small(tmp_path, data):
    folder = probed(tmp_path / "run", data, every=10)
    assert train(folder) == 0
    (line,) = lines_of(folder)
    assert set(line) == {"step", "loss", "survival", "descent", "staleness"}
    assert set(line["survival"]) == {"attention", "mlp", "embedding", "head", "norm"}
    counted = sum(sum(role["weights"]) for role in line["survival"].values())
    assert counted == summary_of(folder)["parameters"]
    assert {state: counts["entries"] for state, counts in line["staleness"].items()} == {"v": counted, "v_e": counted}
    assert set(line["descent"]) == {"all", *line["survival"]}
    # the longest that a line can get: every bin of every role full, at the counts of the 1b model
    full = survival_record(torch.full((len(BINS), 3, 3, 3), 10**7), "m-plus-adam")
    roles = ("attention", "mlp", "embedding", "head", "norm", "other")
    assert len(json.dumps(line | {"survival": dict.fromkeys(roles, full)})) < 20_000
