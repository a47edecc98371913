"""What probes say of an update, against arithmetic of their own: ml_dtypes, NumPy in float64, numbers by hand."""

import copy
import math
import re
import runpy
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from training_ranks import run_ranks

from mpadam import AdamW, AdditiveTwin, Madam, MPlusAdam
from mpadam.numerics import Fp8Blocks, NvFp4, round_bf16
from mpadam.optim.card import Step
from mpadam.probes.flushed import flushed_by_next_step
from mpadam.probes.survey import role_of, survey
from mpadam.probes.survival import BINS, bin_of, count_staleness, count_survival, survival_record

SHAPE = (5, 40)
RULES = {
    "adamw": (AdamW, {"lr": 1e-2}),
    "madam": (Madam, {"lr": 1e-2}),
    "m-plus-adam": (MPlusAdam, {"lr": 1e-2, "lr_mult": 2e-2}),
    "rho-tensor": (MPlusAdam, {"lr": 1e-2, "lr_mult": 2e-2, "multiplicative_form": "normalized_rho_tensor"}),
    "apollo-e": (MPlusAdam, {"lr": 1e-2, "lr_mult": 2e-2, "second_moment": "apollo_e", "apollo_refresh": 2}),
    "unnormalized": (MPlusAdam, {"lr": 1e-2, "lr_mult": 0.5, "multiplicative_form": "unnormalized_rho"}),
    "additive-twin": (AdditiveTwin, {"lr": 1e-2, "lr_mult": 2e-2}),
}
FORMATS = ["fp32", "bf16", "fp8_e5m2", "fp8_e4m3", "nvfp4", "nvfp4_sticky", Fp8Blocks(power_of_two_scale=False)]
STORES = [
    *[(fmt, {"write_back": write_back}) for fmt in FORMATS for write_back in ("nearest", "stochastic", "kahan")],
    *[("fp8_e5m2", {"shadow": shadow}) for shadow in ("refreshed", "persistent")],
]


def normal(seed, shape=SHAPE, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def optimizer_of(rule, weight, **options):
    """An optimizer over one bf16 parameter, which is its only one, and that parameter with a gradient."""
    cls, rates = RULES[rule] if isinstance(rule, str) else rule
    p = nn.Parameter(weight.bfloat16())
    optimizer = cls([p], **{"state_dtype": "bf16", **rates, **options})
    optimizer.reload_weights({p: weight})
    return optimizer, p


def look(optimizer, p):
    return optimizer.preview(p)


def writer(look):
    """part of a step -> the stored weight that it alone would leave"""
    x, update = look.operands, look.update
    return look.plan.store.part_writer(x.stored, update.stored, update.before, x.bits())


def one_update(rule, weight, gradient, **options):
    """The first update of weights, before it is made."""
    optimizer, p = optimizer_of(rule, torch.tensor(weight), **options)
    p.grad = torch.tensor(gradient).bfloat16()
    return look(optimizer, p)


def of_branch(update, branch):
    """bin -> (intended, survived) of a branch."""
    record = survival_record(count_survival(update), update.plan.rule)
    return dict(zip(record["bins"], zip(*record[branch].values(), strict=True), strict=True))


# --- the preview ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_preview_is_the_update_that_follows_and_changes_nothing(rule):
    for fmt, options in STORES if rule == "m-plus-adam" else STORES[3:6]:
        optimizer, p = optimizer_of(rule, normal(0, scale=0.02), weight_format=fmt, seed=3, **options)
        for t in range(3):
            p.grad = normal(10 + t).bfloat16()
            before = copy.deepcopy(optimizer.state_dict()), p.detach().clone(), torch.get_rng_state()
            update = look(optimizer, p).update
            survey_of(optimizer, p)
            assert_equal((optimizer.state_dict(), p.detach(), torch.get_rng_state()), before)
            optimizer.step()
            store = optimizer.store_of(p).tensors
            assert update.stored.keys() == store.keys()
            assert all(torch.equal(store[name], update.stored[name]) for name in store), (fmt, options, t)
            for name, moment in update.moments.items():
                assert torch.equal(optimizer.state[p][name], moment.to(optimizer.state[p][name].dtype))


def survey_of(optimizer, p):
    module = nn.Module()
    module.register_parameter("weight", p)
    return survey(module, optimizer)


def assert_equal(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


def test_a_sharded_parameter_is_refused_with_the_remedy():
    def work(ranks):
        mesh = torch.distributed.init_device_mesh("cpu", (ranks.size,))
        p = nn.Parameter(distribute_tensor(normal(0, (4, 4)).bfloat16(), mesh))
        p.grad = distribute_tensor(normal(1, (4, 4)).bfloat16(), mesh)
        assert isinstance(p.data, DTensor)
        optimizer = AdamW([p], lr=1e-2)
        with pytest.raises(ValueError, match=r"DTensor.*probe_every: null"):
            look(optimizer, p)

    run_ranks(2, work)


# --- blocks that become zeros ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"write_back": "kahan"}, {"write_back": "stochastic"}])
@pytest.mark.parametrize("fmt", ["nvfp4", "nvfp4_sticky"])
def test_nvfp4_blocks_that_become_zeros_are_counted(fmt, options):
    """Of four blocks one holds the largest weight, one is a millionth of it, one is small but kept, one is zero."""
    weight = torch.zeros(2, 32)
    weight[0, 0], weight[0, 16:], weight[1, :16] = 1.0, 1e-6, 1e-4
    optimizer, p = optimizer_of("adamw", weight, weight_format=fmt, weight_decay=0.0, **options)
    p.grad = torch.zeros_like(p)
    lost = {"blocks": 3, "flushed": 1} if options == {"write_back": "kahan"} else {"blocks": 2, "flushed": 0}
    assert flushed_by_next_step(optimizer) == survey_of(optimizer, p)["nvfp4"] == lost  # only a carry holds the rest
    p.grad[0, 16:] = 1e-3
    optimizer.param_groups[0]["lr"] = 1e-10  # the first step of each weight: from zero to zero
    assert flushed_by_next_step(optimizer) == {"blocks": 3, "flushed": 1}
    optimizer.param_groups[0]["lr"] = 1e-2
    assert flushed_by_next_step(optimizer) == {"blocks": 3, "flushed": 0}


@pytest.mark.parametrize("rule", ["madam", "m-plus-adam", "adamw"])
@pytest.mark.parametrize("fmt", ["nvfp4", "nvfp4_sticky"])
def test_nvfp4_blocks_that_died_before_are_still_counted(fmt, rule):
    """A multiplicative step leaves a block of zeros at zero: at the next logged step it was no block any more."""
    weight = torch.full((2, 32), 1e-2)
    weight[0, 0], weight[0, 16:], weight[1, :16] = 1.0, 1e-8, 0.0
    optimizer, p = optimizer_of(rule, weight, weight_format=fmt, lr=1e-10)
    p.grad = torch.full_like(p, 1e-3)
    p.grad[1, :16] = 0.0  # zero by construction
    for _ in range(3):
        assert flushed_by_next_step(optimizer) == survey_of(optimizer, p)["nvfp4"] == {"blocks": 3, "flushed": 1}
        optimizer.step()


def test_only_nvfp4_has_blocks_to_count():
    optimizer, p = optimizer_of("adamw", normal(0), weight_format="fp8_e4m3")
    p.grad = normal(1).bfloat16()
    assert "nvfp4" not in survey_of(optimizer, p)


# --- what a part of it would store ----------------------------------------------------------------------------


@pytest.mark.parametrize(("fmt", "options"), STORES)
def test_the_whole_step_on_its_own_scales_is_what_the_store_writes(fmt, options):
    for seed in range(3):
        optimizer, p = optimizer_of("m-plus-adam", normal(seed, scale=0.02), weight_format=fmt, seed=7, **options)
        p.grad = normal(20 + seed).bfloat16()
        optimizer.step()  # so that there is a carry
        p.grad = normal(30 + seed).bfloat16()
        update = look(optimizer, p)
        stored = update.plan.store.read(update.update.stored, p.shape)
        assert torch.equal(writer(update)(update.update.step.delta), stored)


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_survives_of_nothing(fmt):
    for write_back in ("nearest", "stochastic", "kahan"):
        optimizer, p = optimizer_of("m-plus-adam", normal(0), weight_format=fmt, write_back=write_back)
        p.grad = torch.zeros_like(p)
        counts = count_survival(look(optimizer, p))
        assert counts[:, 0, 0, 0].sum() == p.numel()  # of every branch: not even intended


# --- survival by hand -----------------------------------------------------------------------------------------


def test_bins_are_powers_of_two_and_zero():
    values = [0.0, -0.0, 1.0, -1.99, 2.0, 0.02, 2.0**-24, 2.0**-23 * 0.99, 1e-30, 2.0**-149, 8.0, 1e30]
    got = [BINS[i] for i in bin_of(torch.tensor(values)).tolist()]
    expected = ["zero" if v == 0 else min(3, max(-24, math.frexp(v)[1] - 1)) for v in values]
    assert got == expected


def test_a_tiny_additive_update_is_lost_at_large_weights_and_survives_at_small_ones():
    """AdamW's first step is lr * sign(g) whatever |w| is; bf16 keeps it where ml_dtypes' rounding does."""
    weights = [2.0**e * m for e in range(-12, 4) for m in (1.0, 1.5, -1.25)]
    gradient = [1.0, -3.0, 0.5] * 16
    update = one_update((AdamW, {"lr": 1e-3, "weight_decay": 0.0}), weights, gradient)
    step = np.float32(-1e-3) * np.sign(np.float32(gradient))
    w = np.float32(weights)
    kept = (w + step).astype(ml_dtypes.bfloat16).astype(np.float32) != w
    survivors = of_branch(update, "additive")
    for e in range(-12, 4):
        assert survivors[e] == (3, kept[3 * (e + 12) : 3 * (e + 13)].sum())
    assert survivors[-6] == (3, 3)
    assert survivors[0] == survivors[3] == (3, 0)


def test_a_relative_step_survives_at_every_size_or_at_none_and_never_leaves_zero():
    """Madam's first step is w lr: bf16 has 8 bits, so 2**-6 moves every weight and 2**-10 none."""
    weights, gradient = [0.0, *[1.5 * 2.0**e for e in range(-20, 3)]], [1.0] * 24
    for lr, survive in ((2.0**-6, 1), (2.0**-10, 0)):
        got = of_branch(one_update((Madam, {"lr": lr}), weights, gradient), "multiplicative")
        assert got.pop("zero") == (0, 0)
        assert set(got.values()) == {(1, survive)}


def test_the_default_multiplicative_branch_is_rounded_away_at_large_weights_as_an_additive_one_is():
    """Objection a of the claims: with rho elementwise w u_m is lr_mult sign(g), 0.004, below half an ulp of bf16 from 2
    on (2**-7) and above it below 1 (at most 2**-9)."""
    weights = [2.5, -3.5, 0.75, 0.6]
    got = of_branch(one_update((MPlusAdam, {"lr": 1e-30, "lr_mult": 4e-3}), weights, [1.0, -1.0] * 2), "multiplicative")
    assert got == {1: (2, 0), -1: (2, 2)}


def test_parts_that_are_lost_alone_can_survive_together():
    """At 1 bf16 takes steps above 2**-8 upwards; two of 0.003 are lost one by one."""
    update = one_update((MPlusAdam, {"lr": 3e-3, "lr_mult": 3e-3}), [1.0], [-1.0])
    assert [of_branch(update, branch)[0] for branch in ("additive", "multiplicative", "both")] == [
        (1, 0),
        (1, 0),
        (1, 1),
    ]


@pytest.mark.parametrize("scale", [1.0, 2.0**-7])
def test_fp8_blocks_by_hand(scale):
    """e5m2 between 1 and 2 has 1, 1.25, 1.5, 1.75: a step of 0.2 moves 1 to 1.25, one of 0.1 does not; the block's
    scale follows its largest weight, which leaves the power of two of the others where it is."""
    weights = [scale * w for w in (1.0, 1.0, 1.5, 4.0)]
    update = one_update((AdamW, {"lr": 1e-3}), weights, [1.0] * 4, weight_format="fp8_e5m2")
    for step, survives in ((0.1, [False, False, False, False]), (0.2, [True, True, True, False])):
        write = writer(update)
        moved = write(torch.full((4,), step * scale)) != write(torch.zeros(()))
        assert moved.tolist() == survives


def test_a_weight_that_only_its_scale_moves_has_not_survived():
    """NVFP4: raising the largest weight of the tensor moves all others a little. They have been asked to move by far
    too little, so they count as lost; against the weights as they are they would count as moved."""
    optimizer, p = optimizer_of((AdamW, {"lr": 1e-9}), normal(4, (2, 16)), weight_format="nvfp4")
    p.grad = torch.ones(2, 16).bfloat16()
    update = look(optimizer, p)
    w = update.update.before
    largest = w.abs() == w.abs().max()
    push = torch.where(largest, 0.3 * w, 0.0)
    tiny = torch.full_like(w, 1e-9)
    stored = NvFp4().encode(w + push + tiny)
    decoded = NvFp4().decode(stored)
    whole = update.update._replace(
        step=Step(tiny, w.new_zeros(()), push), stored={f"weight.{k}": t for k, t in stored.tensors.items()}
    )
    joint = update._replace(update=whole)
    assert (decoded != w).sum() > 20
    counts = survival_record(count_survival(joint), "adamw")["additive"]
    assert (sum(counts["intended"]), sum(counts["survived"])) == (32, 0)


def test_stochastic_rounding_takes_the_random_bits_of_that_update():
    optimizer, p = optimizer_of((AdamW, {"lr": 1e-3}), torch.ones(4000), write_back="stochastic", seed=11)
    p.grad = torch.ones(4000).bfloat16()
    update = look(optimizer, p)
    bits = update.operands.bits()
    moved = round_bf16(torch.ones(4000) + update.update.step.additive, "stochastic", bits) != 1.0
    assert of_branch(update, "additive")[0] == (4000, int(moved.sum()))
    assert 0.2 < moved.float().mean() < 0.3  # 0.001 is a quarter of the 2**-8 below 1


def test_the_carry_of_kahan_lets_small_steps_through():
    """Steps of 0.001 down from 1, where bf16 has steps of 2**-8: their sum passes 1/2, 3/2 and 5/2 of it at the second,
    sixth and tenth."""
    optimizer, p = optimizer_of((AdamW, {"lr": 1e-3, "weight_decay": 0.0}), torch.ones(8), write_back="kahan")
    survived = []
    for t in range(1, 11):
        p.grad = torch.ones(8).bfloat16()
        ((_, of_eight),) = of_branch(look(optimizer, p), "additive").values()
        survived += [t] * (of_eight == 8)
        optimizer.step()
    assert survived == [2, 6, 10]


def test_eco_lets_small_steps_through_once_the_first_moment_has_grown():
    """Steps of 0.001 down from 1, where bf16 has steps of 2**-8, a quarter of which each is: in float64, by hand, the
    weight first moves at the 13th update, and from then on at every fourth."""
    options = {"write_back": "eco", "state_dtype": "fp32"}
    optimizer, p = optimizer_of((AdamW, {"lr": 1e-3, "weight_decay": 0.0}), torch.ones(8), **options)
    survived = []
    for t in range(1, 22):
        p.grad = torch.ones(8).bfloat16()
        ((_, of_eight),) = of_branch(look(optimizer, p), "additive").values()
        survived += [t] * (of_eight == 8)
        optimizer.step()
    assert survived == [13, 17]


# --- descent --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_descent_against_numpy(rule):
    """From the optimizer's own preview of the same update, in float64."""
    optimizer, p = optimizer_of(rule, normal(1, scale=0.1))
    for t in range(2):
        p.grad = normal(5 + t).bfloat16()
        seen = look(optimizer, p)
        found = survey_of(optimizer, p)["descent"]["all"]
        optimizer.step()
    w, g = (x.double().numpy().ravel() for x in (seen.update.before, seen.operands.grad))
    expected = {}
    if rule != "madam":
        expected["additive"] = measures(g, seen.update.step.additive.double().numpy().ravel())
    if rule != "adamw":
        g_e = math.log(2) * w * g
        ratio = seen.update.step.multiplicative.double().numpy().ravel() / w
        expected |= {"ln": measures(g_e, np.log(1 + ratio)), "log2": measures(g_e, np.log2(1 + ratio))}
    assert found.pop("undefined", 0) == 0
    assert found == {key: pytest.approx(value, rel=1e-4) for key, value in expected.items()}


def measures(g, u):
    return {
        "cosine": -(g @ u) / np.linalg.norm(g) / np.linalg.norm(u),
        "at_least": np.linalg.norm(u) / np.linalg.norm(g),
        "at_most": -(g @ u) / (g @ g),
    }


def test_at_cosine_one_the_interval_is_the_rate():
    """Gradients of one size: Adam's first step is lr sign(g) = lr / |g| g, the step that the theorem is about."""
    optimizer, p = optimizer_of((AdamW, {"lr": 0.25}), torch.tensor([1.0, -2.0, 4.0]), state_dtype="fp32")
    p.grad = torch.tensor([2.0, -2.0, 2.0]).bfloat16()
    found = survey_of(optimizer, p)["descent"]["all"]["additive"]
    assert found == {key: pytest.approx(v) for key, v in (("cosine", 1.0), ("at_least", 0.125), ("at_most", 0.125))}


def test_without_a_clip_weights_that_change_their_sign_are_counted_and_left_out():
    options = {"max_relative_step": None, "lr": 1e-3, "lr_mult": 0.5}
    optimizer, p = optimizer_of((MPlusAdam, options), torch.tensor([0.1, 4.0]))
    p.grad = torch.ones(2).bfloat16()
    found = survey_of(optimizer, p)["descent"]["all"]
    assert found["undefined"] == 1  # 0.5 / 0.1 times the weight, downwards
    assert all(math.isfinite(value) for value in found["ln"].values())


def test_no_gradient_has_no_direction():
    optimizer, p = optimizer_of("m-plus-adam", torch.ones(3))
    p.grad = torch.zeros(3).bfloat16()
    assert survey_of(optimizer, p)["descent"]["all"]["additive"] == dict.fromkeys(("cosine", "at_least", "at_most"))


# --- staleness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta2", "dtype", "stale"), [(0.999, "bf16", 4), (0.98, "bf16", 0), (0.999, "fp32", 0)])
def test_a_second_moment_that_should_decay(beta2, dtype, stale):
    """v = 1 and no gradient: it should lose 0.001, a quarter of the 2**-8 below 1; or 0.02, which bf16 can say."""
    optimizer, p = optimizer_of((AdamW, {"lr": 1e-3, "betas": (0.9, beta2), "state_dtype": dtype}), torch.ones(5))
    optimizer.state[p]["v"].copy_(torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))
    p.grad = torch.zeros(5).bfloat16()
    assert {name: counts.tolist() for name, counts in count_staleness(look(optimizer, p)).items()} == {
        "v": [5, 4, stale]
    }


def test_staleness_of_both_moments_against_ml_dtypes():
    optimizer, p = optimizer_of((MPlusAdam, {"betas": (0.87, 0.995)}), normal(2))
    for t in range(4):
        p.grad = normal(40 + t).bfloat16()
        optimizer.step()
    p.grad = normal(50).bfloat16()
    g, w = p.grad.float().numpy(), p.detach().float().numpy()
    expected = {}
    for name, square in (("v", g * g), ("v_e", (np.float32(math.log(2)) * w * g) ** 2)):
        old = optimizer.state[p][name].float().numpy()
        new = np.float32(0.995) * old + np.float32(1 - 0.995) * square
        stale = (new != old) & (new.astype(ml_dtypes.bfloat16).astype(np.float32) == old)
        expected[name] = [200, int((new != old).sum()), int(stale.sum())]
    got = {name: counts.tolist() for name, counts in count_staleness(look(optimizer, p)).items()}
    assert got == expected
    assert got["v"][2] >= 5


def test_roles():
    group = {"role": "projection"}
    assert role_of("model.layers.0.self_attn.q_proj.weight", group) == "attention"
    assert role_of("model.layers.0.mlp.up_proj.weight", group) == "mlp"
    assert role_of("fc.weight", group) == "projection"
    assert role_of("model.embed_tokens.weight", {"role": "embedding"}) == "embedding"


def test_the_cost_of_a_look_can_be_measured(monkeypatch, capsys):
    script = Path(__file__).parents[2] / "benchmarks" / "probe_cost.py"
    options = (
        "--rounds 1 --batch 2 --length 8 --vocabulary 64 --model 16 32 1 2 --masters nvfp4 bf16 "
        "--optimizers torch m-plus-adam"
    )
    monkeypatch.setattr(sys, "argv", [str(script), *options.split()])
    runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out
    assert not re.search("^nvfp4 +torch", shown, re.MULTILINE)
    assert re.search(r"^bf16 +torch +[\d,]+( +[\d.]+){8}%$", shown, re.MULTILINE)
    assert re.search(r"^nvfp4 +m-plus-adam +[\d,]+( +[\d.]+){8}%$", shown, re.MULTILINE)
