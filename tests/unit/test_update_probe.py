"""`mpadam.UpdateProbe`: its counts against replays of their own, and a training that does not notice it."""

from __future__ import annotations

import copy
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from update_probe_model import ALL, Model, probed, same

import mpadam
from mpadam.numerics import get_format, random_bits
from mpadam.optim.store import StorePlan
from mpadam.probes.replay import ELEMENTWISE, Replica
from mpadam.probes.survey import survey
from mpadam.probes.tally import keep
from mpadam.probes.tiles import draw_tiles

BF16 = ml_dtypes.bfloat16


# --- what is lost, in float64 -----------------------------------------------------------------------------------------


def numpy_of(tensor):
    return tensor.detach().to(torch.float64).numpy()


def adamw_step(w, g, state, o):
    t = float(state["step"]) + 1 if state else 1
    b1, b2 = o["betas"]
    m = b1 * (numpy_of(state["exp_avg"]) if state else 0) + (1 - b1) * g
    v = b2 * (numpy_of(state["exp_avg_sq"]) if state else 0) + (1 - b2) * g * g
    return -o["lr"] * (m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + o["eps"]) + o["weight_decay"] * w)


def sgd_step(w, g, state, o):
    g = g + o["weight_decay"] * w
    buffer = state.get("momentum_buffer") if state else None
    velocity = g if buffer is None else o["momentum"] * numpy_of(buffer) + g
    return -o["lr"] * (g + o["momentum"] * velocity if o["nesterov"] else velocity)


CASES = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-3}, adamw_step),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, sgd_step),
    "sgd-nesterov": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, sgd_step),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_the_share_of_lost_updates_is_that_of_a_replay_in_float64(case, dtype):
    """Intended: the float64 step moves the float32 weight. Lost: it does, and the weight after the step is the same."""
    cls, options, step_of = CASES[case]
    model = Model(dtype)
    optimizer, records = cls(model.parameters(), **options), []
    mpadam.UpdateProbe(optimizer, model, every=1, samples=ALL, out=records.append)
    for t in range(4):
        model.give_gradients(t)
        before = copy.deepcopy([(p.detach(), p.grad, optimizer.state.get(p, {})) for p in model.parameters()])
        optimizer.step()
        for (name, p), (w, g, state) in zip(model.named_parameters(), before, strict=True):
            old = numpy_of(w)
            step = step_of(old, numpy_of(g), state, optimizer.param_groups[0])
            intended = (old + step).astype(np.float32) != old
            lost = intended & (numpy_of(p) == old)
            layer = records[t]["layers"][name]
            assert layer["sampled"] == p.numel()
            assert layer["intended"] == pytest.approx(intended.sum(), abs=0.001 * p.numel())
            assert layer["lost"]["stored"] == pytest.approx(lost.sum(), abs=0.001 * p.numel())
    share = records[-1]["lost"]["stored"] / records[-1]["intended"]
    assert (0.05 < share < 0.95) if dtype is torch.bfloat16 else (share == 0)


@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}, {"foreach": False}])
def test_in_float32_nothing_is_lost_whatever_runs_the_step(way):
    for lr in (1e-2, 1e-5):
        model = Model(torch.float32)
        for record in probed(torch.optim.AdamW(model.parameters(), lr=lr, **way), model):
            assert record["lost"]["stored"] == 0
            assert record["intended"] > 7000


def test_what_bf16_would_lose_of_float32_weights_is_counted_by_ml_dtypes():
    model = Model(torch.float32)
    optimizer, records = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    mpadam.UpdateProbe(optimizer, model, every=3, samples=ALL, out=records.append)
    for t in range(3):
        model.give_gradients(t)
        before = [p.detach().numpy().copy() for p in model.parameters()]
        optimizer.step()
    lost = 0
    for p, w in zip(model.parameters(), before, strict=True):
        stored, step = w.astype(BF16), p.detach().numpy() - w
        lost += ((stored.astype(np.float32) + step).astype(BF16) == stored)[step != 0].sum()
    assert records[0]["lost"]["bf16"] == lost > 1000
    trials = records[0]["trials"]
    assert trials["bf16/nearest"]["lost"] == lost
    assert trials["fp32/nearest"]["lost"] < 10  # steps from bf16 weights, in float32
    assert trials["bf16/stochastic"]["arrived"] == pytest.approx(trials["bf16/stochastic"]["size"], rel=0.1)
    assert trials["bf16/kahan"]["arrived"] == pytest.approx(trials["bf16/kahan"]["size"], rel=1e-3)


def test_moments_that_bf16_cannot_move():
    """beta2 = 0.999 and a gradient of zero: v should decay by 0.1%, which bf16 cannot hold; m decays by a tenth."""
    p = nn.Parameter(torch.ones(500))
    model = nn.Module()
    model.register_parameter("p", p)
    optimizer, records = torch.optim.Adam([p], lr=1e-3), []
    mpadam.UpdateProbe(optimizer, model, every=2, out=records.append)
    for gradient in (1.0, 0.0):
        p.grad = torch.full_like(p, gradient)
        optimizer.step()
    assert records[0]["moments"] == {"exp_avg": {"due": 500, "stale": 0}, "exp_avg_sq": {"due": 500, "stale": 500}}


# --- the replay -------------------------------------------------------------------------------------------------------

OPTIONS = {
    "SGD": [
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.5, "maximize": True},
        {"fused": True},
    ],
    "Adam": [{"amsgrad": True, "weight_decay": 0.1}, {"lr": torch.tensor(1e-3)}, {"capturable": False, "fused": True}],
    "AdamW": [{"maximize": True}, {"betas": (0.0, 0.9)}],
    "NAdam": [{"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9}],
    "Adagrad": [{"lr_decay": 0.1, "initial_accumulator_value": 0.1}],
    "ASGD": [{"t0": 1.0, "weight_decay": 0.1}],
}
ELEMENTWISE_CASES = [
    pytest.param(cls, {"lr": 1e-3, **options}, id=f"{cls.__name__}-{number}")
    for cls in ELEMENTWISE
    for number, options in enumerate([{}, *OPTIONS.get(cls.__name__, [])])
]


@pytest.mark.parametrize(("cls", "options"), ELEMENTWISE_CASES)
def test_a_replay_is_the_step_that_follows(cls, options):
    """In float32, of two groups, where the step itself is the replay; only a fused one rounds in another order."""
    model = Model(torch.float32)
    groups = [{"params": [model.wide, model.scalar]}, {"params": [model.narrow, model.bias], "lr": 2e-3}]
    optimizer = cls(groups, **options)
    for t in range(4):
        model.give_gradients(t)
        model.bias.grad = None if t == 1 else model.bias.grad
        members = [p for p in model.parameters() if p.grad is not None]
        tiles = {p: draw_tiles(p, size=600, seed=0, step=t, tensor_id=n) for n, p in enumerate(members)}
        replica = Replica(optimizer, tiles)
        optimizer.step()
        for p, sample in tiles.items():
            bits = {"rtol": 1e-6, "atol": 1e-7} if options.get("fused") else {"rtol": 0, "atol": 0}
            inside = slice(None) if sample.inside is None else sample.inside
            torch.testing.assert_close(replica.after[p][inside], sample.take(p)[inside], **bits)


@pytest.mark.parametrize(("cls", "options"), [*ELEMENTWISE_CASES, (mpadam.MPlusAdam, {"write_back": "stochastic"})])
def test_a_training_has_the_same_bits_with_a_probe(cls, options):
    ends = []
    for every in (None, 1):
        model = Model()
        optimizer = cls(model.parameters(), **copy.deepcopy(options))
        if every:
            mpadam.UpdateProbe(optimizer, model, every=every, out=[].append, samples=300)
        torch.manual_seed(0)
        for t in range(3):
            model.give_gradients(t)
            model.bias.grad = None
            optimizer.step()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        ends.append((list(model.parameters()), gradients, optimizer.state_dict(), len(optimizer.state)))
        ends[-1] += (torch.get_rng_state(),)
    assert same(*ends)


def test_the_gradient_is_the_one_the_optimizer_gets():
    """Clipped before the step, made by a closure within it, unscaled by a GradScaler or by a fused optimizer."""

    def trained(prepare, **options):
        model = Model(torch.float32)
        optimizer, records = torch.optim.SGD(model.parameters(), lr=0.1, **options), []
        mpadam.UpdateProbe(optimizer, model, every=1, samples=ALL, out=records.append)
        prepare(model, optimizer)
        return {key: records[0][key] for key in ("intended", "lost", "spacing", "magnitude")}

    def plain(model, optimizer):
        model.give_gradients(0)
        optimizer.step()

    def closed(model, optimizer):
        optimizer.step(closure=lambda: model.give_gradients(0))

    def scaled(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(torch.zeros(()))
        model.give_gradients(0)
        for p in model.parameters():
            p.grad.mul_(4.0)
        scaler.step(optimizer)

    expected = trained(plain)
    assert trained(closed) == expected
    assert trained(scaled) == expected
    assert trained(scaled, fused=True) == trained(plain, fused=True)


def test_a_step_that_a_grad_scaler_leaves_out_is_not_counted():
    for fused in (False, True):
        model, records = Model(torch.float32), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        mpadam.UpdateProbe(optimizer, model, every=1, out=records.append)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(torch.zeros(()))
        model.give_gradients(0)
        model.bias.grad[0] = torch.inf
        scaler.step(optimizer)
        assert records == []


def test_a_replay_calls_no_hook_of_the_user():
    steps = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
    try:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        assert len(probed(optimizer, model, steps=2, every=1)) == 2
    finally:
        handle.remove()
    assert steps == [optimizer, optimizer]


class Unknown(torch.optim.SGD):
    """Perhaps with a step of its own."""


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (torch.optim.LBFGS, "line search"),
        (torch.optim.Adafactor, "rows and columns"),
        (torch.optim.Muon, "orthogonalizes"),
        (torch.optim.SparseAdam, "sparse gradient"),
        (Unknown, "its class is unknown"),
    ],
)
def test_an_optimizer_that_is_not_elementwise_is_named_and_refused(cls, why):
    model = nn.Linear(4, 4, bias=False)
    with pytest.raises(ValueError, match=rf"optimizer = {cls.__name__}: .*{why}.*AdamW"):
        mpadam.UpdateProbe(cls(model.parameters(), lr=0.1), model)


def test_parameters_that_cannot_be_sampled_are_refused_at_the_first_step():
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mpadam.UpdateProbe(optimizer, model, out=[].append)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="'weight' has a sparse gradient"):
        optimizer.step()
    turned = nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(ValueError, match="'0' is complex"):
        mpadam.UpdateProbe(torch.optim.SGD(turned.parameters()), turned)


def test_options_are_checked(tmp_path):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters())
    wrong = {"every": (0, True, 2.0), "samples": (0.5,), "seed": ("a",), "step": (-1, "3"), "out": (3, None)}
    for options in [{key: value} for key, values in wrong.items() for value in values]:
        ((key, value),) = options.items()
        with pytest.raises(ValueError, match=f"{key} = {value!r}"):
            mpadam.UpdateProbe(optimizer, model, **options)
    for path in (tmp_path, Path(__file__) / "updates.jsonl"):  # found at once, and not after 100 steps
        with pytest.raises(ValueError, match=r"cannot be written \(.*\); give another path"):
            mpadam.UpdateProbe(optimizer, model, out=path)


# --- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (5,), (1000,), (9, 300), (4, 3, 3, 3), (1, 5000)])
def test_every_element_is_as_likely_as_any_other(shape):
    """Sums of samples, times their weight, are right in the mean: of every single element."""
    x, draws = torch.zeros(shape), 3000
    state = torch.get_rng_state()
    counts = torch.zeros(x.numel())
    for step in range(draws):
        tiles = draw_tiles(x, size=256, seed=1, step=step, tensor_id=2)
        index = tiles.index.flatten() if tiles.inside is None else tiles.index[tiles.inside]
        assert tiles.size == len(index)
        counts += tiles.weight * torch.bincount(index, minlength=x.numel())
    spread = (tiles.weight - 1) ** 0.5 * draws**-0.5
    assert (counts / draws - 1).abs().max() <= 5 * spread
    assert torch.equal(state, torch.get_rng_state())


def test_a_sample_estimates_the_share_of_the_whole():
    found = []
    for samples in (ALL, 2048):
        torch.manual_seed(0)
        model = nn.Linear(700, 400, bias=False).bfloat16()
        optimizer, records = torch.optim.SGD(model.parameters(), lr=1.0), []
        mpadam.UpdateProbe(optimizer, model, every=1, samples=samples, out=records.append)
        model.weight.grad = 1e-4 * torch.randn_like(model.weight)
        optimizer.step()
        found.append({view: lost / records[0]["intended"] for view, lost in records[0]["lost"].items()})
    assert found[1] == pytest.approx(found[0], abs=0.04)
    assert 0.2 < found[0]["stored"] < 0.9


# --- mpadam's own optimizers, and one way of counting -----------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["fp32", "bf16", "fp8_e5m2", "fp8_e4m3", "nvfp4"])
@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan"])
def test_the_probes_of_a_study_count_the_same(fmt, write_back):
    """`survey` counts all parameters in full, without a decay."""
    model = Model()
    optimizer = mpadam.AdamW(
        [model.wide, model.narrow], lr=1e-3, weight_decay=0.0, weight_format=fmt, write_back=write_back
    )
    for t in range(3):
        model.give_gradients(t)
        counted = survey(model, optimizer)["survival"]["projection"]
        records = []
        with mpadam.UpdateProbe(optimizer, model, every=1, samples=ALL, out=records.append):
            optimizer.step()
        (record,) = records
        intended, survived = (sum(counted["additive"][key]) for key in ("intended", "survived"))
        assert record["intended"] == pytest.approx(intended, abs=2)
        assert record["lost"]["stored"] == pytest.approx(intended - survived, abs=2)
        if fmt != "fp32":
            assert record["lost"]["stored"] > 100


@pytest.mark.parametrize("fmt", ["bf16", "fp8_e5m2", "nvfp4", "nvfp4_sticky"])
@pytest.mark.parametrize("options", [{}, {"write_back": "stochastic"}, {"write_back": "kahan"}])
def test_a_preview_of_rows_is_that_part_of_the_whole(fmt, options):
    model = Model()
    optimizer = mpadam.MPlusAdam([model.wide], weight_format=fmt, seed=3, **options)
    for t in range(3):
        model.give_gradients(t)
        if t:
            optimizer.step()
    rows = torch.tensor([5, 0, 17, int(model.wide.abs().amax(1).argmax())])
    whole, part = optimizer.preview(model.wide).update, optimizer.preview(model.wide, rows).update
    assert torch.equal(part.before, whole.before[rows])
    assert torch.equal(part.step.delta, whole.step.delta[rows])
    plan = optimizer.plan_of(model.wide).store
    assert torch.equal(plan.read(part.stored, part.before.shape), plan.read(whole.stored, whole.before.shape)[rows])


@pytest.mark.parametrize("form", ["normalized_rho", "normalized_rho_tensor"])
def test_rules_that_look_at_whole_tensors_are_probed(form):
    model = Model()
    optimizer = mpadam.MPlusAdam(model.parameters(), multiplicative_form=form, weight_format="fp8_e4m3")
    records = probed(optimizer, model, samples=256)
    assert len(records) == 3
    assert all(0 < record["lost"]["stored"] < record["intended"] for record in records)


@pytest.mark.parametrize("fmt", ["bf16", "fp8_e5m2", "nvfp4"])
def test_a_trial_is_what_a_store_of_the_whole_tensor_would_do(fmt):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(8, 256, generator=generator)
    step = 0.05 * torch.randn(8, 256, generator=generator)
    step.flatten()[w.abs().argmax()] = 0.0  # a sample need not hold what decides the scale of the tensor
    bits = random_bits(seed=0, step=1, tensor_id=0, shape=w.shape)
    largest = w.abs().max().expand(8, 1)
    plan = StorePlan(get_format(fmt))
    before = plan.initial(w)
    base = plan.read(before, w.shape)
    write = plan.part_writer(before, plan.write(before, base, step, None).tensors, base, None)
    moved, gap = keep(w, step, fmt, "nearest", bits=bits, largest=largest)
    expected = write(step) - write(torch.zeros_like(step))
    agree = (moved == 0) == (expected == 0)
    assert agree.float().mean() > 0.999
    assert (gap > 0).all()
    drawn, _ = keep(w, step, fmt, "stochastic", bits=bits, largest=largest)
    assert (drawn * step.sign()).sum() == pytest.approx(step.abs().sum().item(), rel=0.25)


@pytest.mark.parametrize("fmt", ["fp32", "bf16", "fp8_e5m2", "fp8_e4m3", "nvfp4"])
def test_the_spacing_is_that_to_the_next_value_of_the_format(fmt):
    """On the scales as they are, where a value away from the largest one of its block has a neighbour."""
    numbers = get_format(fmt)
    encoded = numbers.encode(torch.randn(6, 64, generator=torch.Generator().manual_seed(0)))
    x, rounded = numbers.decode(encoded), numbers.rounding_on(encoded)
    gap = numbers.spacing_on(encoded, x)
    inner = x.abs() + gap < 0.9 * x.unflatten(1, (-1, 16)).abs().amax(2, keepdim=True).expand(6, 4, 16).flatten(1)
    beyond = (x + x.sign() * gap)[inner]
    assert torch.equal(rounded(x + x.sign() * gap, None)[inner], beyond)
    assert torch.equal(rounded(x + x.sign() * 0.25 * gap, None)[inner], x[inner]) or fmt == "fp32"
    assert inner.sum() > 100
