"""One update: gradients of the global batch however it is split (T2, O9), clipping, and what is not finite (O10)."""

import math
import weakref

import pytest
import torch
from torch import nn
from training_runs import LENGTH, StopAfter, make_data, make_run, metrics_of, summary_of, train, weights_of

from mpadam.optim.schedules import factor
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import BranchSchedule, read_run_file
from mpadam.training import loop
from mpadam.training.gradients import accumulate_in_float32, clip_, global_norm
from mpadam.training.session import open_data, open_session


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"), sequences="truncate_pad")


def session_of(path, data, **changes):
    folder = RunFolder(make_run(path, data, sequences="truncate_pad", **changes))
    folder.checkpoints.mkdir()
    run = read_run_file(folder.run_file)
    return open_session(run, folder, open_data(run, folder))


def test_o9_a_thousand_gradients_of_one_add_up_to_a_thousand():
    weight, control = (nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)) for _ in range(2))
    accumulate_in_float32([weight])
    for _ in range(1000):
        weight.sum().backward()
        control.sum().backward()
    assert weight.grad.tolist() == [1000.0] * 3
    assert control.grad.tolist() == [256.0] * 3  # what a bf16 sum does


@pytest.mark.parametrize("gradient_dtype", ["bf16", "fp32"])
def test_o9_t2_splits_of_a_batch_give_the_same_gradient(tmp_path, data, gradient_dtype):
    """Documents differ in length, so micro-batches differ in target tokens: means of means would not agree."""
    results = {}
    for micro in (16, 4, 1):
        session = session_of(
            tmp_path / f"{micro}", data, global_batch_size=16, micro_batch_size=micro, gradient_dtype=gradient_dtype
        )
        results[micro] = loop.backward(session, 1)
    for micro in (4, 1):
        (loss, norm), (whole_loss, whole_norm) = results[micro].values.tolist(), results[16].values.tolist()
        assert loss == pytest.approx(whole_loss, rel=1e-5)
        assert norm == pytest.approx(whole_norm, rel=1e-3)
        assert results[micro].target_tokens == results[16].target_tokens
        for split, whole in zip(results[micro].tensors, results[16].tensors, strict=True):
            assert split.dtype == torch.float32
            # each micro-batch's own gradient is rounded to bf16 by autograd: 2^-9 of its size, summed at random
            assert (split - whole.float()).norm() <= 4e-3 * whole.float().norm()


def test_t2_loss_is_the_mean_over_target_tokens_of_the_global_batch(tmp_path, data):
    session = session_of(tmp_path / "run", data, global_batch_size=16, micro_batch_size=4)
    batch = session.batches.batch(0)
    labels = torch.from_numpy(batch.labels)
    with torch.no_grad():
        logits = session.model(torch.from_numpy(batch.input_ids)).logits[:, :-1].double()
    nll = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    result = loop.backward(session, 1)
    assert 0 < result.target_tokens < 16 * (LENGTH - 1)
    assert result.values[0].item() == pytest.approx(nll.item(), rel=1e-5)


def test_t2_a_budget_of_ten_updates_is_ten_updates(tmp_path, data):
    """Rates, positions and tokens of each step; stopped after five and resumed, the list is the same."""
    whole = make_run(tmp_path / "whole", data, sequences="truncate_pad", steps=10)
    split = make_run(tmp_path / "split", data, sequences="truncate_pad", steps=10, micro_batch_size=1)
    resumed = make_run(tmp_path / "resumed", data, sequences="truncate_pad", steps=10)
    assert train(whole) == train(split) == 0
    assert train(resumed, stop=StopAfter(5)) == 75
    assert len(metrics_of(resumed)) == 5
    assert train(resumed) == 0
    assert metrics_of(resumed) == metrics_of(whole)
    schedule = read_run_file(whole / "run.yaml").spec.training
    lines = metrics_of(whole)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["lr"] for line in lines] == [
        3e-3 * factor(t, kind="linear", total_steps=10, warmup_steps=2, min_ratio=0.1) for t in range(1, 11)
    ]
    assert [line["lr_mult"] for line in lines] == [
        1e-2 * factor(t, **schedule.schedule_mult.model_dump()) for t in range(1, 11)
    ]
    assert lines[-1]["positions"] == 10 * 8 * LENGTH
    session = session_of(tmp_path / "tokens", data, steps=10)
    assert lines[-1]["target_tokens"] == sum(session.batches.batch(step).target_tokens for step in range(10))
    for one, other in zip(lines, metrics_of(split), strict=True):
        assert {k: one[k] for k in ("lr", "lr_mult", "positions", "target_tokens")} == {
            k: other[k] for k in ("lr", "lr_mult", "positions", "target_tokens")
        }
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-2)
    assert summary_of(whole)["steps"] == 10


def test_each_branch_has_its_own_steps_warm_up_shape_and_minimum(tmp_path, data):
    additive = BranchSchedule(kind="linear", total_steps=8, warmup_steps=4, min_ratio=0.5, alpha=3.0)
    multiplicative = BranchSchedule(kind="cosine", total_steps=5, warmup_steps=1, min_ratio=0.2, alpha=3.0)
    folder = make_run(
        tmp_path / "run", data, sequences="truncate_pad", steps=10, schedule=additive, schedule_mult=multiplicative
    )
    assert train(folder) == 0
    cosine = [0.2 + 0.8 * (1 + math.cos(math.pi * p / 4)) / 2 for p in range(1, 5)]
    expected = {
        "lr": [0.25, 0.5, 0.75, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5],
        "lr_mult": [1.0, *cosine, *[0.2] * 5],
    }
    for key, peak in (("lr", 3e-3), ("lr_mult", 1e-2)):
        assert [line[key] for line in metrics_of(folder)] == pytest.approx([peak * f for f in expected[key]])


def test_tied_rates_keep_their_ratio(tmp_path, data):
    """The reference's tie_e_to_m: `schedule_mult: null` in the configuration gives both branches one schedule."""
    schedule = BranchSchedule(kind="linear", total_steps=6, warmup_steps=2, min_ratio=0.1, alpha=3.0)
    folder = make_run(
        tmp_path / "run", data, sequences="truncate_pad", steps=6, schedule=schedule, schedule_mult=schedule
    )
    assert train(folder) == 0
    ratios = [line["lr_mult"] / line["lr"] for line in metrics_of(folder)]
    assert ratios == pytest.approx([1e-2 / 3e-3] * 6)
    assert len({line["lr"] for line in metrics_of(folder)}) > 3


@pytest.mark.parametrize(
    ("log_every", "evaluate_every", "checkpoint_every"), [(1, None, 3), (4, 3, 4), (7, 5, 100), (100, 1, 1)]
)
def test_logging_validation_and_saving_happen_when_they_should(
    tmp_path, data, log_every, evaluate_every, checkpoint_every
):
    intervals = {"log_every": log_every, "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every}
    folder = make_run(tmp_path / "run", data, sequences="truncate_pad", steps=10, **intervals)
    saved, good = [], loop.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loop, "save", lambda session, records: (saved.append(session.progress.step), good(session, records))
        )
        assert train(folder) == 0

    def every(interval, *also):
        return sorted({*range(interval, 11, interval), *also})

    assert [line["step"] for line in metrics_of(folder)] == every(log_every, 1, 10)
    validated = [entry["step"] for entry in summary_of(folder)["validation"]]
    assert validated == ([10] if evaluate_every is None else every(evaluate_every, 10))
    assert saved == [step for step in every(checkpoint_every) if step < 10]


def test_clipping_scales_to_the_limit_and_leaves_smaller_gradients_alone():
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator) for shape in ((30, 20), (7,))]
    before = [g.clone() for g in gradients]
    norm = global_norm(gradients)
    assert norm.item() == pytest.approx(math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients)), rel=1e-6)
    clip_(gradients, norm=norm, limit=2 * norm.item())
    clip_(gradients, norm=norm, limit=None)
    assert all(torch.equal(a, b) for a, b in zip(gradients, before, strict=True))
    clip_(gradients, norm=norm, limit=0.5)
    assert global_norm(gradients).item() == pytest.approx(0.5, rel=1e-5)
    torch.testing.assert_close(gradients[0], before[0] * (0.5 / norm.item()))


def test_clipping_bf16_gradients_multiplies_in_float32_and_rounds_once():
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    norm = global_norm([gradient])
    expected = (gradient.float() * (0.3 / norm.item())).bfloat16()
    clip_([gradient], norm=norm, limit=0.3)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("norm", [1.0, 3.0, 1.00000012, 977.5, 1e30])
def test_clipping_rounds_every_bf16_number_once(norm):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    factor = torch.tensor(1.0 / torch.tensor(norm).double().item(), dtype=torch.float32)
    expected = (every.float() * factor).bfloat16()
    gradients = [every.clone(), every.reshape(256, 256).t().clone(), every[3:10].clone()]  # and what is no vector long
    clip_(gradients, norm=torch.tensor(norm), limit=1.0)
    for got, want in zip(gradients, (expected, expected.reshape(256, 256).t(), expected[3:10]), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_the_norm_of_each_gradient_is_torchs_whatever_came_before():
    """Copies are made in memory that is used again: a long one must leave nothing in a short one's."""
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator).bfloat16() for shape in ((7,), (300, 411), (5, 3), (300, 412))]
    each = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    for gradient, expected in zip(gradients, each, strict=True):
        assert torch.equal(global_norm([gradient]), expected)
    assert torch.equal(global_norm(gradients), torch.linalg.vector_norm(torch.stack(each)))
    turned = gradients[1].t()  # summed in the order of its memory, as torch does
    assert torch.equal(global_norm([turned]), torch.linalg.vector_norm(turned, dtype=torch.float32))


def test_the_norm_depends_on_no_default_and_leaves_nothing_behind():
    gradient = torch.randn(70_000, generator=torch.Generator().manual_seed(1)).bfloat16()  # longer than those before
    expected = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    with torch.inference_mode():
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                first = global_norm([gradient.repeat(3)])
        finally:
            torch.set_default_dtype(torch.float32)
    assert (first.dtype, first.device.type) == (torch.float32, "cpu")
    assert torch.equal(global_norm([gradient]), expected)
    followed = gradient.clone().requires_grad_()
    assert global_norm([followed]).requires_grad
    assert not global_norm([gradient]).requires_grad


def test_the_norm_of_bf16_gradients_is_taken_in_float32():
    gradients = [torch.full((1000, 1000), 2.0**-10, dtype=torch.bfloat16), torch.full((3,), 1e-3).bfloat16()]
    exact = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))
    norm = global_norm(gradients)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("gradient_dtype", "rounded"), [("bf16", True), ("fp32", False)])
def test_gradient_dtype_says_what_the_optimizer_gets(tmp_path, data, gradient_dtype, rounded):
    session = session_of(tmp_path / "run", data, micro_batch_size=2, gradient_dtype=gradient_dtype)
    gradients = loop.backward(session, 1)
    loop.update(session, gradients)
    flat = torch.cat([p.grad.flatten() for p in session.model.parameters()])
    assert torch.equal(flat, flat.bfloat16().float()) is rounded


# --- O10: one policy, stop before the update --------------------------------------------------------------------------


def poison(monkeypatch, *, at, where):
    """From update `at` on, the loss or one gradient is NaN."""
    good = loop.backward

    def bad(session, step):
        result = good(session, step)
        if step < at:
            return result
        if where == "loss":
            result.values[0] = math.nan
        else:
            result.tensors[3].view(-1)[5] = math.nan
            result.values[1] = global_norm(result.tensors)
        return result

    monkeypatch.setattr(loop, "backward", bad)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_o10_what_is_not_finite_ends_the_run_before_the_update(tmp_path, data, where, monkeypatch):
    healthy = make_run(tmp_path / "healthy", data, sequences="truncate_pad", steps=10)
    sick = make_run(tmp_path / "sick", data, sequences="truncate_pad", steps=10)
    weights = {}
    good = loop.update

    def watch(session, gradients):
        good(session, gradients)
        name = session.folder.path.name, gradients.step
        weights[name] = {key: value.clone() for key, value in session.model.state_dict().items()}

    monkeypatch.setattr(loop, "update", watch)
    assert train(healthy) == 0
    poison(monkeypatch, at=7, where=where)
    assert train(sick) == 0
    summary = summary_of(sick)
    assert summary["status"] == "diverged"
    assert summary["diverged"]["step"] == 7
    assert summary["diverged"]["last_finite_loss"] == metrics_of(healthy)[5]["loss"]
    assert "nan" in summary["diverged"]["reason"]
    assert summary["val_loss"] is summary["val_ppl"] is summary["val_tokens"] is None
    assert metrics_of(sick) == metrics_of(healthy)[:6]
    kept = weights_of(sick)
    assert all(torch.equal(kept[name], value) for name, value in weights["healthy", 6].items())
    assert not any(torch.equal(kept[name], value) for name, value in weights["healthy", 7].items() if value.ndim == 2)


def test_o10_a_diverged_run_is_a_result_and_not_tried_again(tmp_path, data, monkeypatch):
    folder = make_run(tmp_path / "run", data, sequences="truncate_pad", steps=10)
    with monkeypatch.context() as patch:
        poison(patch, at=3, where="gradient")
        assert train(folder) == 0
    first = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    assert train(folder) == 0
    assert (folder / "summary.json").read_bytes() == first


def test_o10_a_validation_that_is_not_finite_is_divergence_too(tmp_path, data, monkeypatch):
    folder = make_run(tmp_path / "run", data, sequences="truncate_pad", steps=4, evaluate_every=None)
    good = loop.update

    def explode(session, gradients):
        good(session, gradients)
        if gradients.step == 4:
            with torch.no_grad():
                session.model.model.norm.weight.fill_(math.inf)

    monkeypatch.setattr(loop, "update", explode)
    assert train(folder) == 0
    summary = summary_of(folder)
    assert summary["status"] == "diverged"
    assert summary["diverged"]["reason"] == "validation loss nan"
    assert summary["validation"] == []


# --- check_nonfinite_every: looked for later, told the same ----------------------------------------------------------


def rarely_checked(folder, data, every, **changes):
    return make_run(
        folder, data, sequences="truncate_pad", steps=12, log_every=100, evaluate_every=None, checkpoint_every=100,
        check_nonfinite_every=every, **changes,
    )  # fmt: skip


def test_checking_rarely_changes_no_bit_of_a_run_that_stays_finite(tmp_path, data):
    folders = [rarely_checked(tmp_path / str(every), data, every) for every in (1, 5)]
    for folder in folders:
        assert train(folder) == 0
    assert metrics_of(folders[0]) == metrics_of(folders[1])
    one, other = map(weights_of, folders)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("checked", [(1, 7), (5, 10), (1000, 12)])  # every; before which update it is found then
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_o10_checking_rarely_still_tells_step_and_last_finite_loss(tmp_path, data, checked, where, monkeypatch):
    every, found_before_update = checked
    healthy = make_run(tmp_path / "healthy", data, sequences="truncate_pad", steps=12, evaluate_every=None)
    assert train(healthy) == 0
    sick = rarely_checked(tmp_path / "sick", data, every)
    poison(monkeypatch, at=7, where=where)
    assert train(sick) == 0
    summary = summary_of(sick)
    assert summary["status"] == "diverged"
    assert summary["diverged"]["step"] == 7
    assert summary["diverged"]["last_finite_loss"] == summary["train_loss"] == metrics_of(healthy)[5]["loss"]
    assert summary["diverged"]["updates_of_weights"] == found_before_update - 1
    assert summary["steps"] == 6
    assert summary["target_tokens"] == metrics_of(healthy)[5]["target_tokens"]
    assert summary["val_loss"] is None
    assert [line["step"] for line in metrics_of(sick)] == [1]


def test_i18_gradients_are_not_kept_until_they_are_looked_at(tmp_path, data, monkeypatch):
    """A thousand updates between two checks would otherwise need the memory of a thousand gradients."""
    folder, good, seen = rarely_checked(tmp_path / "run", data, 1000), loop.update, []

    def watch(session, gradients):
        seen.append(weakref.ref(gradients))
        assert all(gone() is None for gone in seen[:-2])
        good(session, gradients)

    monkeypatch.setattr(loop, "update", watch)
    assert train(folder) == 0
    assert len(seen) == 12


def test_o10_nothing_that_is_not_finite_is_saved_for_a_later_attempt(tmp_path, data, monkeypatch):
    """Told to stop two steps after the gradient went bad, which nobody has looked at yet."""
    folder = rarely_checked(tmp_path / "run", data, 1000)
    poison(monkeypatch, at=7, where="gradient")
    assert train(folder, stop=StopAfter(8)) == 0
    assert summary_of(folder)["diverged"]["step"] == 7
    assert summary_of(folder)["diverged"]["updates_of_weights"] == 8
