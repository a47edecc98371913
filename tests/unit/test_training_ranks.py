"""Several ranks train one model: same bits on each of them, same batches, losses as of one (O2, D7, F8, T1)."""

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from training_ranks import run_ranks, train_on
from training_runs import StopAfter, assert_same_run, make_data, make_run, metrics_of, run_spec, summary_of, train

from mpadam.data import TrainBatches
from mpadam.model.build import build_model
from mpadam.study.spec import read_run_file
from mpadam.training import gradients as gradient_sums
from mpadam.training import loop
from mpadam.training.evaluation import evaluate
from mpadam.training.folder import RefusedError
from mpadam.training.gradients import sum_over_ranks_
from mpadam.training.metrics import MetricsFile
from mpadam.training.ranks import ALONE, Ranks
from mpadam.training.session import open_validation, replicated
from mpadam.training.stopping import Stopper

# A rank computes fewer rows at once, and autograd rounds what they give to bf16 before it is summed. Within ten steps
# losses were seen to differ by 3e-5 (bf16 and float32 masters), 4e-3 (NVFP4, whose tensor scale couples all weights),
# and not at all where each rank computes the same micro-batches as one would: few bf16 numbers add up exactly.
TOLERANCE = {"fp32": 1e-3, "bf16": 1e-3, "fp8": 1e-3, "nvfp4": 2e-2}
RUNS = {
    "stochastic": {"name": "m-plus-adam-sr", "micro_batch_size": 2},
    "kahan, float32 sums": {"name": "adamw-kahan", "gradient_dtype": "fp32"},
    "fp8-fp8": {"name": "adamw-sr", "masters": "fp8", "compute": "fp8", "micro_batch_size": 2},
    "nvfp4-bf16": {"name": "m-plus-adam", "masters": "nvfp4"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def watched(ranks, folder, **options):
    """Train as one rank; per update: bits of the weights and of their stores, norms, rows read.

    The ranks draw unequally from the global generators in between.
    """
    seen = {"weights": [], "rows": [], "norms": [], "code": None}
    batch = TrainBatches.batch

    def watching(update):
        def watched_update(session, gradients, *more):
            torch.rand(100 * (ranks.rank + 1))
            np.random.rand(ranks.rank + 1)
            found = update(session, gradients, *more)
            digest = hashlib.sha256()
            for tensor in replicated(session).values():
                digest.update(tensor.detach().flatten().view(torch.uint8).numpy())
            seen["weights"].append(digest.hexdigest())
            seen["norms"].append(gradients.values[1].item())
            return found

        return watched_update

    def watched_batch(self, step, rows=slice(None)):
        seen["rows"].append((step, self.indices(step)[rows].tolist()))
        return batch(self, step, rows)

    # In a forked child, so nothing is put back. NVFP4 blocks that become zeros are counted where a step is logged.
    loop.update, loop.counted_update = watching(loop.update), watching(loop.counted_update)
    TrainBatches.batch = watched_batch
    seen["code"] = train_on(ranks, folder, **options)
    return seen


@pytest.mark.parametrize("name", RUNS)
def test_o2_two_ranks_hold_the_same_bits_at_every_step_and_after_resume(tmp_path, data, name):
    changes = RUNS[name]
    alone, whole, parts = (make_run(tmp_path / n, data, **changes) for n in ("alone", "whole", "parts"))
    assert train(alone) == 0
    first, second = run_ranks(2, lambda ranks: watched(ranks, whole))
    assert first["code"] == second["code"] == 0
    assert len(first["weights"]) == 10
    assert first["weights"] == second["weights"]
    assert first["norms"] == second["norms"] == [line["grad_norm"] for line in metrics_of(whole)]
    assert len(set(first["weights"])) == 10

    # each row of the global batch on exactly one rank, and the same global batch as one process reads
    for (step, mine), (_, theirs), (_, together) in zip(
        first["rows"], second["rows"], rows_of(alone, data), strict=True
    ):
        assert mine + theirs == together, step

    # stopped twice
    codes = [run_ranks(2, lambda ranks, n=n: train_on(ranks, parts, stop=StopAfter(n)))[0] for n in (4, 3)]
    resumed = run_ranks(2, lambda ranks: watched(ranks, parts))
    assert codes == [75, 75]
    assert [r["weights"] for r in resumed] == [first["weights"][7:]] * 2
    assert_same_run(parts, whole)

    # losses as of one rank
    for one, two in zip(metrics_of(alone), metrics_of(whole), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=TOLERANCE[changes.get("masters", "bf16")])
        assert {k: one[k] for k in ("step", "positions", "target_tokens", "lr")} == {
            k: two[k] for k in ("step", "positions", "target_tokens", "lr")
        }
    assert summary_of(whole)["world_size"] == 2
    assert summary_of(alone)["world_size"] == 1
    assert json.loads((whole / "environment.json").read_text())["world_size"] == 2


def rows_of(folder, data):
    spec = json.loads((folder / "summary.json").read_text())["spec"]
    from mpadam.study.streams import stream_seed

    batches = TrainBatches(
        data, sequences="pack", sequence_length=32, global_batch_size=8, seed=stream_seed(spec["seed"], "data-order")
    )
    return [(step, batches.indices(step).tolist()) for step in range(10)]


def test_four_ranks_agree_with_two_and_one(tmp_path, data):
    folders = {size: make_run(tmp_path / str(size), data, name="m-plus-adam-sr") for size in (1, 2, 4)}
    for size, folder in folders.items():
        assert run_ranks(size, lambda ranks, folder=folder: train_on(ranks, folder)) == [0] * size
    losses = {size: [line["loss"] for line in metrics_of(folder)] for size, folder in folders.items()}
    for size in (2, 4):
        assert losses[size] == pytest.approx(losses[1], rel=TOLERANCE["bf16"])
        assert summary_of(folders[size])["val_loss"] == pytest.approx(
            summary_of(folders[1])["val_loss"], rel=TOLERANCE["bf16"]
        )
    assert losses[4] != losses[1]  # another order of sums: other bits, which is why a run keeps its number of ranks


def test_a_mean_over_ranks_of_means_would_be_noticed(tmp_path, data):
    """Control: documents differ in length, so a rank's own mean loss is not its share of the global one."""
    spec = run_spec(make_data(tmp_path / "padded", sequences="truncate_pad"), sequences="truncate_pad")
    data = make_data(tmp_path / "again", sequences="truncate_pad")
    batches = TrainBatches(data, sequences="truncate_pad", sequence_length=32, global_batch_size=8, seed=0)
    counts = [[batches.batch(step, Ranks(r, 2).rows(8)).target_tokens for r in (0, 1)] for step in range(10)]
    assert max(abs(a / b - 1) for a, b in counts) > 0.2
    assert spec.training.global_batch_size == 8


# --- D7: who reads what ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "global_batch"), [(2, 4), (3, 6), (3, 3), (4, 4)])
def test_d7_one_pass_has_each_sequence_once_and_equal_steps_on_every_rank(data, size, global_batch):
    batches = TrainBatches(data, sequences="pack", sequence_length=32, global_batch_size=global_batch, seed=3)
    steps = batches.sequences // global_batch
    read = [
        [i for step in range(steps) for i in batches.indices(step)[Ranks(rank, size).rows(global_batch)]]
        for rank in range(size)
    ]
    assert {len(rows) for rows in read} == {steps * global_batch // size}
    union = [i for rows in read for i in rows]
    assert len(set(union)) == len(union) == steps * global_batch
    together = {int(i) for step in range(steps) for i in batches.indices(step)}
    assert {int(i) for i in union} == together


def test_d7_ranks_that_cannot_share_a_batch_are_refused_not_left_hanging(tmp_path, data):
    folder = make_run(tmp_path / "run", data, global_batch_size=8)

    def attempt(ranks):
        with pytest.raises(ValueError, match=r"global_batch_size 8 cannot be shared by 3 processes"):
            train_on(ranks, folder)
        return True

    assert run_ranks(3, attempt) == [True] * 3


# --- sums, norms, decisions ------------------------------------------------------------------------------------------


def test_gradients_are_summed_in_float32_over_several_buckets(monkeypatch):
    """1 + 2^-12 is lost in bf16 and kept in float32."""
    monkeypatch.setattr(gradient_sums, "BUCKET_ELEMENTS", 10)

    def work(ranks):
        value = 1.0 if ranks.rank else 2.0**-12
        tensors = [torch.full(shape, value) for shape in ((3, 2), (7,), (), (20,), (1, 1))]
        sum_over_ranks_(tensors, ranks)
        return [(tuple(t.shape), t.unique().tolist()) for t in tensors]

    expected = [(shape, [1.0 + 2.0**-12]) for shape in ((3, 2), (7,), (), (20,), (1, 1))]
    assert run_ranks(2, work) == [expected] * 2
    one = [torch.ones(2)]
    sum_over_ranks_(one, ALONE)
    assert one[0].tolist() == [1.0, 1.0]


def test_what_rank_0_does_or_fails_at_all_ranks_learn():
    class UnsendableError(Exception):
        def __reduce__(self):
            raise TypeError

    def refuse():
        raise RefusedError("not now")

    def fail():
        raise UnsendableError("a handle")

    def work(ranks):
        called = []
        value = ranks.together(lambda: called.append(1) or {"step": 7})
        errors = []
        for action in (refuse, fail):
            try:
                ranks.together(action)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        agreed = (ranks.any_reason(None), ranks.any_reason("time is up" if ranks.rank else None))
        gathered, counts = ranks.gather(ranks.rank), (ranks.total(1, ranks.rank), ranks.largest(-1, ranks.rank))
        return len(called), value, errors, agreed, gathered, counts

    first, second = run_ranks(2, work)
    assert first[0] == 1
    assert second[0] == 0
    assert first[1] == second[1] == {"step": 7}
    assert first[2] == ["RefusedError: not now", "UnsendableError: a handle"]
    assert second[2] == ["RefusedError: not now", "RuntimeError: UnsendableError: a handle"]
    assert first[3] == (None, "another process was told to stop")
    assert second[3] == (None, "time is up")
    assert first[4] == second[4] == [0, 1]
    assert first[5] == second[5] == ((2, 1), (-1, 1))


def test_a_reason_to_stop_on_one_rank_stops_all_after_the_same_step(tmp_path, data):
    folder = make_run(tmp_path / "run", data)

    def work(ranks):
        return train_on(ranks, folder, stop=StopAfter(3 if ranks.rank == 1 else 100))

    assert run_ranks(2, work) == [75, 75]
    assert [line["step"] for line in metrics_of(folder)] == [1, 2, 3]
    assert "another process was told to stop" in (folder / "train.log").read_text()


def test_n24_a_signal_to_one_rank_ends_an_evaluation_on_all_of_them(tmp_path, data):
    """The other rank has one batch fewer, and is done when the signal comes."""
    folder = make_run(tmp_path / "run", data, steps=5, checkpoint_every=1000)

    class InEvaluation(Stopper):
        asked = 0

        @property
        def signal(self):
            self.asked += 1
            return "signal SIGTERM" if self.asked == 1 + 4 + 2 else None  # the start, four updates, two batches

    def work(ranks):
        batches = open_validation(data, read_run_file(folder / "run.yaml").spec.data).batches
        count = len(list(batches(16, rank=ranks.rank, world_size=2)))
        stopped = train_on(ranks, folder, stop=InEvaluation() if ranks.leads else Stopper())
        return count, stopped, train_on(ranks, folder)

    assert run_ranks(2, work) == [(2, 75, 0), (1, 75, 0)]
    assert [entry["step"] for entry in summary_of(folder)["validation"]] == [5]


def test_o10_divergence_on_one_rank_ends_all_of_them_at_that_step(tmp_path, data):
    folder = make_run(tmp_path / "run", data)
    good = loop.loss_sum

    def work(ranks):
        calls = []

        def bad(*args, **kwargs):
            calls.append(1)
            loss, nll = good(*args, **kwargs)
            return (loss * math.nan, nll) if ranks.rank == 1 and len(calls) == 4 else (loss, nll)

        loop.loss_sum = bad
        return train_on(ranks, folder)

    assert run_ranks(2, work) == [0, 0]
    summary = summary_of(folder)
    assert summary["status"] == "diverged"
    assert summary["diverged"]["step"] == 4
    assert summary["diverged"]["reason"] == "gradient norm nan"
    assert [line["step"] for line in metrics_of(folder)] == [1, 2, 3]


@pytest.mark.parametrize("where", ["save", "append"])
def test_t4_a_full_disk_ends_all_ranks_alike_and_nothing_hangs(tmp_path, data, where):
    folder = make_run(tmp_path / "run", data, checkpoint_every=3)

    def work(ranks):
        def full(*_):
            raise OSError(28, "No space left on device")

        owner = torch if where == "save" else MetricsFile
        with pytest.MonkeyPatch.context() as patch:
            if ranks.leads:
                patch.setattr(owner, where, full)
            with pytest.raises(OSError, match="No space left") as caught:
                train_on(ranks, folder)
        return caught.value.errno, train_on(ranks, folder)

    assert run_ranks(2, work) == [(28, 0)] * 2
    assert [line["step"] for line in metrics_of(folder)] == list(range(1, 11))


def test_replicas_that_drifted_are_not_saved(tmp_path, data):
    folder = make_run(tmp_path / "run", data, checkpoint_every=3)
    good = loop.update

    def work(ranks):
        def drift(session, gradients):
            good(session, gradients)
            if ranks.rank == 1 and gradients.step == 2:
                with torch.no_grad():
                    session.model.model.norm.weight[3] += 0.0078125
                session.optimizer.reload_weights()

        loop.update = drift
        with pytest.raises(RuntimeError, match=r"no longer hold the same bits: .*model\.norm\.weight"):
            train_on(ranks, folder)
        return True

    assert run_ranks(2, work) == [True, True]
    assert list((folder / "checkpoints").glob("step*")) == []


# --- number of ranks -------------------------------------------------------------------------------------------------


def test_a_run_keeps_its_number_of_ranks_unless_told_otherwise(tmp_path, data):
    folder = make_run(tmp_path / "run", data)
    assert run_ranks(2, lambda ranks: train_on(ranks, folder, stop=StopAfter(4))) == [75, 75]
    with pytest.raises(RefusedError, match=r"made by 2 processes, and this is a training by 1.*--change-world-size"):
        train(folder)
    assert run_ranks(1, lambda ranks: train_on(ranks, folder, change_world_size=True)) == [0]
    summary = summary_of(folder)
    assert summary["world_size"] == 1
    assert summary["world_sizes"] == [2, 1]
    assert [line["step"] for line in metrics_of(folder)] == list(range(1, 11))


# --- T1 at two ranks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequences", ["pack", "truncate_pad"])
def test_t1_perplexity_is_the_same_at_one_and_two_ranks_and_any_batch_size(tmp_path, sequences):
    """1,003 target tokens in uneven rows, float32: to 1e-6."""
    data = make_data(tmp_path, sequences=sequences, documents_per_split=(40, 120))
    spec = run_spec(data, sequences=sequences, validation_tokens=2006)
    model = build_model(spec.model, seed=0, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)

    def work(ranks):
        tokens = open_validation(data, spec.data)
        return [
            evaluate(model, tokens.batches(n, rank=ranks.rank, world_size=ranks.size), ranks=ranks)
            for n in (1, 3, 8, 1000)
        ]

    (expected, *_), *_ = run_ranks(1, work)
    assert expected.tokens == 1003
    for size in (2, 3):
        for results in run_ranks(size, work):
            assert [r.tokens for r in results] == [1003] * 4
            assert [r.loss for r in results] == pytest.approx([expected.loss] * 4, rel=1e-6)
    assert not isinstance(model, nn.parallel.DistributedDataParallel)
