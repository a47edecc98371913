"""ECO: what rounding takes from the weight comes back through the first moment, and where it cannot, nothing breaks.

The injection itself is compared with float64 in `test_optimizer_reference`.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mpadam import AdamW, Madam, MPlusAdam
from mpadam.numerics.formats import CARDS
from mpadam.optim.optimizer import AdditiveTwin

ECO = ("eco", "eco_stochastic")
CODED = [name for name, card in CARDS.items() if name != "fp32"]


def weights() -> Tensor:
    """Ones, and a larger weight in each block, which gets no gradient and so keeps the block's scale."""
    w = torch.ones(8, 32)
    w[:, ::16] = 4.0
    return w


def run(p: Tensor, optimizer: torch.optim.Optimizer, gradient: Tensor, steps: int) -> None:
    for _ in range(steps):
        p.grad = gradient.clone()
        optimizer.step()


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight_format", "spacing", "distance"),
    [("bf16", 2**-8, 0.125), ("fp8_e4m3", 2**-4, 2.0), ("fp8_e5m2", 2**-3, 2.0), ("nvfp4", 0.5, 2.0)],
)
def test_small_constant_steps_move_the_weight_as_far_as_a_master(
    weight_format: str, spacing: float, distance: float
) -> None:
    """Steps of a quarter of a spacing, of which nearest loses all. ECO with nearest lags 3 spacings behind: m has to
    grow to half a spacing before the weight moves, and then owes b1 / (1 - b1) times that. By chance there is no lag.
    """
    lr, still, moved = spacing / 4, weights() > 1, {}
    for write_back in ("nearest", *ECO):
        p = torch.nn.Parameter(weights())
        optimizer = AdamW(
            [p], lr=lr, weight_decay=0.0, weight_format=weight_format, write_back=write_back, state_dtype="fp32"
        )
        run(p, optimizer, torch.where(still, 0.0, 1e-3), round(distance / lr))
        assert (optimizer.store_of(p).read()[still] == 4.0).all()
        moved[write_back] = 1.0 - optimizer.store_of(p).read()[~still]
    assert (moved["nearest"] == 0).all()
    assert (moved["eco"] <= distance).all()
    assert (moved["eco"] >= distance - 3.5 * spacing).all()
    assert moved["eco_stochastic"].mean().item() == pytest.approx(distance, abs=0.25 * spacing)


@pytest.mark.parametrize(("write_back", "lag"), [("eco", 3.5 * 2**-9), ("eco_stochastic", 2**-11)])
def test_a_decay_below_half_an_ulp_adds_up_without_any_gradient(write_back: str, lag: float) -> None:
    """Both moments are zero but for what is owed: alpha and the step divide by eps, and it cancels."""
    p = torch.nn.Parameter(torch.full((1024,), 0.5, dtype=torch.bfloat16))
    optimizer = AdamW([p], lr=1e-3, weight_decay=0.2, write_back=write_back, state_dtype="fp32")
    run(p, optimizer, torch.zeros_like(p), 200)
    assert p.float().mean().item() == pytest.approx(0.5 * (1 - 2e-4) ** 200, abs=lag)


def test_an_error_is_returned_in_full_over_the_coming_updates() -> None:
    """One write of a step that bf16 cannot hold, then gradients that keep v_hat and add nothing to m: float64."""
    w, lr, (b1, b2) = 1.0, 1e-4, (0.87, 0.98)
    p = torch.nn.Parameter(torch.full((1,), w, dtype=torch.bfloat16))
    optimizer = AdamW([p], lr=lr, weight_decay=0.0, write_back="eco", state_dtype="fp32", betas=(b1, b2), eps=1e-3)
    run(p, optimizer, torch.full_like(p, 1.0), 1)
    assert p.item() == w  # a step of 1e-4 is below half an ulp
    lost, m_of_master = -lr, 1 - b1
    owed = optimizer.state[p]["m"].item() - m_of_master
    v_hat, total = 1.0, 0.0
    for k in range(1, 200):
        total -= lr * b1**k * owed / (1 - b1) / (math.sqrt(v_hat) + 1e-3)  # with the bias correction of update 1
    assert total == pytest.approx(lost, rel=2e-3)


# -- where nothing is to come back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_back", ECO)
def test_float32_weights_and_their_moments_are_those_of_nearest(write_back: str) -> None:
    ends = []
    for one in ("nearest", write_back):
        p = torch.nn.Parameter(torch.linspace(-1, 1, 40).reshape(4, 10).to(torch.bfloat16))
        optimizer = AdamW([p], weight_format="fp32", write_back=one, state_dtype="bf16")
        for t in range(20):
            run(p, optimizer, torch.full_like(p, math.sin(t)), 1)
        ends.append((optimizer.store_of(p).read(), optimizer.state[p]["m"], optimizer.state[p]["v"]))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("weight_format", CODED)
@pytest.mark.parametrize("write_back", ECO)
def test_a_rate_of_zero_neither_rounds_nor_injects(write_back: str, weight_format: str) -> None:
    """alpha grows as 1 / lr; at zero the weight stays, and m only takes up the gradient."""
    generator = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(torch.randn(4, 40, generator=generator) * 0.02)
    optimizer = AdamW([p], lr=1e-3, weight_format=weight_format, write_back=write_back, state_dtype="fp32")
    for _ in range(3):
        run(p, optimizer, torch.randn(p.shape, generator=generator), 1)
    stored, m = optimizer.store_of(p).read(), optimizer.state[p]["m"].clone()
    optimizer.param_groups[0]["lr"] = 0.0
    g = torch.randn(p.shape, generator=generator)
    run(p, optimizer, g, 1)
    assert torch.equal(optimizer.store_of(p).read(), stored)
    assert torch.equal(optimizer.state[p]["m"], 0.87 * m + (1.0 - 0.87) * g)


@pytest.mark.parametrize("write_back", ECO)
def test_rates_that_fall_to_the_smallest_floats_leave_everything_finite(write_back: str) -> None:
    p = torch.nn.Parameter(torch.linspace(-0.1, 0.1, 64).reshape(2, 32).to(torch.bfloat16))
    optimizer = AdamW([p], lr=1e-3, write_back=write_back, weight_format="fp8_e4m3", state_dtype="fp32")
    for exponent in range(3, 320, 4):
        optimizer.param_groups[0]["lr"] = 10.0**-exponent
        run(p, optimizer, torch.linspace(-1, 1, 64).reshape(2, 32).to(p.dtype), 1)
    assert p.isfinite().all()
    assert optimizer.state[p]["m"].isfinite().all()


def test_a_second_moment_that_overflowed_stops_its_element_and_nothing_else() -> None:
    p = torch.nn.Parameter(torch.full((4,), 0.5, dtype=torch.bfloat16))
    optimizer = AdamW([p], lr=1e-3, write_back="eco", state_dtype="fp32")
    g = torch.full_like(p, 1e-3)
    g[1] = 1e20
    run(p, optimizer, g, 3)
    assert optimizer.state[p]["v"][1].isinf()
    assert optimizer.state[p]["m"].isfinite().all()
    assert p[1] == 0.5
    assert (p[[0, 2, 3]] < 0.5).all()


# -- what it costs, and what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_format", CARDS)
def test_it_keeps_the_states_of_adamw_alone(weight_format: str) -> None:
    held = []
    for write_back in ("nearest", *ECO):
        p = torch.nn.Parameter(torch.ones(2, 32, dtype=torch.bfloat16))
        state = AdamW([p], weight_format=weight_format, write_back=write_back).state[p]
        held.append({k: (t.dtype, t.shape) for k, t in state.items() if isinstance(t, Tensor)})
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("write_back", ECO)
@pytest.mark.parametrize("build", [MPlusAdam, Madam, AdditiveTwin])
def test_a_rule_with_a_multiplicative_or_second_branch_is_refused(build: type, write_back: str) -> None:
    with pytest.raises(ValueError, match=f"write_back = '{write_back}' with rule = .*single additive branch"):
        build([torch.nn.Parameter(torch.ones(4))], write_back=write_back)


def test_beta1_of_zero_and_a_shadow_are_refused() -> None:
    p = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"beta1 = 0.0: give a number in \(0, 1\)"):
        AdamW([p], betas=(0.0, 0.98), write_back="eco")
    with pytest.raises(ValueError, match="the first moment already keeps what a shadow would"):
        AdamW([p], write_back="eco_stochastic", weight_format="nvfp4", shadow="persistent")
