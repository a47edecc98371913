"""Probes of descent and of stale second moments, against arithmetic of their own."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from probed_updates import RULES, look, normal, optimizer_of, survey_of

from mpadam import AdamW, MPlusAdam
from mpadam.probes.survival import count_staleness

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
