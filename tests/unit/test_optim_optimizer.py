"""The optimizer classes as users meet them: signatures, groups, schedulers, and errors that say what to do."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from mpadam import AdamW, Madam, MPlusAdam
from mpadam.optim.optimizer import AdditiveTwin
from mpadam.optim.schedules import factor


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    values = torch.linspace(-0.1, 0.1, math.prod(shape) if shape else 1)
    return nn.Parameter(values.reshape(shape).to(dtype))


def train(optimizer: torch.optim.Optimizer, p: Tensor, steps: int = 3) -> None:
    for t in range(steps):
        p.grad = torch.full_like(p, 0.5 + t)
        optimizer.step()


def test_signatures_are_the_documented_ones() -> None:
    """Order, defaults and what is keyword-only, as in design and docs."""
    parameters = inspect.signature(MPlusAdam).parameters
    positional = [k for k, v in parameters.items() if v.kind is v.POSITIONAL_OR_KEYWORD]
    assert positional == ["params", "lr", "lr_mult"]
    defaults = {k: v.default for k, v in parameters.items() if k != "params"}
    assert defaults == {
        "lr": 8e-5, "lr_mult": 4e-3, "betas": (0.87, 0.98), "eps": 1e-20, "weight_decay": 0.1,
        "weight_decay_mult": 0.01, "tau": 1e-8, "max_relative_step": 0.75, "multiplicative_form": "normalized_rho",
        "block_scale_exponent": 0.0, "second_moment": "full", "apollo_rank": 4, "apollo_refresh": 200,
        "apollo_scope": "projections",
        "write_back": "nearest", "weight_format": None, "state_dtype": None, "carry_dtype": None, "shadow": "none",
        "shadow_dtype": None, "seed": 0, "compile": "auto", "tie_lr_mult": None,
    }  # fmt: skip
    assert list(inspect.signature(AdamW).parameters)[:6] == [
        "params",
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "write_back",
    ]
    madam = inspect.signature(Madam).parameters
    assert (madam["lr"].default, madam["beta2"].default) == (4e-3, 0.98)
    assert "lr_mult" not in madam


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: AdamW([p], lr=-1.0), "lr = -1.0"),
        (lambda p: AdamW([p], lr="1e-3"), "lr = '1e-3'"),
        (lambda p: AdamW([p], betas=(0.9, 1.0)), r"beta2 = 1.0: give a number in \[0, 1\)"),
        (lambda p: AdamW([p], betas=0.9), r"betas = 0.9: give a pair"),
        (lambda p: AdamW([p], betas=(0.9, 0.95, 0.99)), "give a pair"),
        (lambda p: AdamW([p], eps=0.0), "eps = 0.0"),
        (lambda p: AdamW([p], weight_decay=-0.1), "weight_decay = -0.1"),
        (lambda p: AdamW([{"params": [p], "weight_decay": math.nan}]), "weight_decay = nan"),
        (
            lambda p: AdamW([p], write_back="round"),
            "write_back = 'round': give one of nearest, stochastic, kahan, eco, eco_stochastic",
        ),
        (lambda p: AdamW([p], weight_format="fp9"), "fp9"),
        (lambda p: AdamW([p], weight_format=["bf16"]), r"weight_format = \['bf16'\]"),
        (lambda p: AdamW([p], state_dtype="fp16"), "state_dtype = 'fp16': give 'fp32', 'bf16' or None"),
        (lambda p: AdamW([p], state_dtype=torch.float16), "state_dtype = torch.float16"),
        (lambda p: AdamW([p], seed=-1), "seed = -1"),
        (lambda p: AdamW([p], seed=2**63), r"below 2\*\*63"),
        (lambda p: AdamW([p], shadow="hidden", weight_format="fp8_e5m2"), "shadow = 'hidden'"),
        (lambda p: AdamW([p], shadow="refreshed"), "a shadow accompanies codes"),
        (lambda p: AdamW([p], shadow="persistent", weight_format="nvfp4", write_back="kahan"), "choose one of the two"),
        (lambda p: MPlusAdam([p], lr_mult=math.inf), "lr_mult = inf"),
        (lambda p: MPlusAdam([p], tau=0.0), "tau = 0.0"),
        (lambda p: MPlusAdam([p], max_relative_step=0.0), "max_relative_step = 0.0"),
        (
            lambda p: MPlusAdam([p], multiplicative_form="rho"),
            "multiplicative_form = 'rho': give one of normalized_rho",
        ),
        (lambda p: MPlusAdam([p], second_moment="apollo"), "second_moment = 'apollo': give one of full, apollo_e"),
        (lambda p: MPlusAdam([p], second_moment="apollo_e", multiplicative_form="unnormalized_rho"), "compresses v_e"),
        (lambda p: MPlusAdam([p], second_moment="apollo_e", apollo_rank=0), "apollo_rank = 0"),
        (lambda p: MPlusAdam([p], second_moment="apollo_e", apollo_scope="all"), "apollo_scope = 'all'"),
        (lambda p: MPlusAdam([p], lr=0.0, tie_lr_mult=True), "tie_lr_mult = True with lr = 0"),
        (lambda p: Madam([p], beta2=-0.1), "beta2 = -0.1"),
    ],
)
def test_bad_options_name_key_value_and_remedy(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(parameter(8, 8))


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool])
def test_parameters_that_are_not_floating_point_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="only floating-point parameters can be trained; leave it out"):
        AdamW([torch.zeros(3).to(dtype)])


def test_a_dtype_that_is_no_format_needs_to_be_told_its_format() -> None:
    half = parameter(4, dtype=torch.float16)
    with pytest.raises(ValueError, match="say weight_format='fp32' or 'bf16'"):
        AdamW([half])
    optimizer = AdamW([half], weight_format="fp32", state_dtype="fp32")
    train(optimizer, half)
    assert torch.equal(half, optimizer.store_of(half).read().to(torch.float16))


def test_sparse_gradients_are_refused_before_anything_changes() -> None:
    dense, embedding = parameter(3), nn.Embedding(4, 3, sparse=True)
    optimizer = AdamW([dense, embedding.weight])
    before = dense.detach().clone()
    dense.grad = torch.ones(3)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        optimizer.step()
    assert torch.equal(dense, before)
    assert optimizer.state[dense]["step"] == 0


def test_a_group_that_is_refused_leaves_no_trace() -> None:
    p, q = parameter(3), parameter(4)
    optimizer = AdamW([p])
    with pytest.raises(ValueError, match="lr = -1"):
        optimizer.add_param_group({"params": [q], "lr": -1})
    with pytest.raises(ValueError, match="floating-point"):
        optimizer.add_param_group({"params": [q, torch.zeros(2, dtype=torch.int64)], "weight_format": "nvfp4"})
    assert len(optimizer.param_groups) == 1
    assert list(optimizer.state) == [p]
    optimizer.add_param_group({"params": [q], "lr": 1e-2, "weight_format": "fp8_e4m3"})
    assert optimizer.state[q]["id"] == 1
    train(optimizer, q)


def test_options_hold_for_their_group() -> None:
    p, q, r = parameter(4, 32, dtype=torch.bfloat16), parameter(4, 32, dtype=torch.bfloat16), parameter(32)
    optimizer = MPlusAdam(
        [
            {"params": [p], "weight_format": "nvfp4", "write_back": "kahan"},
            {"params": [q], "state_dtype": torch.float32, "multiplicative_form": "unnormalized_rho"},
            {"params": [r], "weight_decay": 0.0, "weight_decay_mult": 0.0, "lr": 0.0, "lr_mult": 0.0},
        ]
    )
    still = r.detach().clone()
    for x in (p, q, r):
        x.grad = torch.ones_like(x)
    optimizer.step()
    state = optimizer.state
    stored = {"weight.codes", "weight.scales", "weight.tensor_scale"}
    assert state[p].keys() == {"step", "id", "m", "v", "v_e", "carry"} | stored
    assert state[q].keys() == {"step", "id", "m", "v"}
    assert [state[x]["m"].dtype for x in (p, q, r)] == [torch.bfloat16, torch.float32, torch.float32]
    assert torch.equal(r, still)


def test_state_dtype_follows_the_parameter_or_is_told() -> None:
    for dtype, told, expected in (
        (torch.bfloat16, None, torch.bfloat16),
        (torch.float32, None, torch.float32),
        (torch.bfloat16, "fp32", torch.float32),
        (torch.float32, "bf16", torch.bfloat16),
    ):
        p = parameter(4, dtype=dtype)
        assert AdamW([p], state_dtype=told).state[p]["v"].dtype == expected


def test_parameters_without_gradient_are_skipped_and_count_no_update() -> None:
    p, q = parameter(3), parameter(3)
    optimizer = AdamW([p, q])
    before = q.detach().clone()
    train(optimizer, p)
    assert (optimizer.state[p]["step"], optimizer.state[q]["step"]) == (3, 0)
    assert torch.equal(q, before)


def test_a_closure_is_evaluated_with_gradients() -> None:
    p = parameter(3)
    optimizer = AdamW([p])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    before = p.square().sum().item()
    assert optimizer.step(closure).item() == pytest.approx(before)
    assert p.square().sum().item() < before


def schedule(epoch: int) -> float:
    return factor(epoch + 1, kind="linear", total_steps=8, warmup_steps=2)


def test_a_standard_scheduler_moves_lr_only() -> None:
    p = parameter(3)
    optimizer = MPlusAdam([p], lr=1e-3, lr_mult=1e-2)
    scheduler = LambdaLR(optimizer, schedule)
    train(optimizer, p, 1)
    scheduler.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 5 / 6)
    assert optimizer.param_groups[0]["lr_mult"] == 1e-2


def test_tied_rates_move_together() -> None:
    """With tie_lr_mult a scheduler on lr does what setting both rates by hand does, bit for bit."""
    tied, by_hand = parameter(4, 8), parameter(4, 8)
    optimizer = MPlusAdam([tied], lr=1e-3, lr_mult=1e-2, tie_lr_mult=True)
    oracle = MPlusAdam([by_hand], lr=1e-3, lr_mult=1e-2)
    scheduler = LambdaLR(optimizer, schedule)
    for t in range(8):
        scale = schedule(t)
        oracle.param_groups[0].update(lr=1e-3 * scale, lr_mult=1e-2 * (1e-3 * scale / 1e-3))
        for o, p in ((optimizer, tied), (oracle, by_hand)):
            p.grad = torch.full_like(p, math.cos(t))
            o.step()
        scheduler.step()
        assert torch.equal(tied, by_hand)


def test_lr_may_be_a_tensor_and_betas_may_move() -> None:
    ours, oracle = parameter(4), parameter(4)
    moved = AdamW([ours], lr=torch.tensor(1e-2), betas=(0.5, 0.6))  # type: ignore[arg-type]
    moved.param_groups[0]["betas"] = (0.9, 0.95)
    train(moved, ours)
    train(AdamW([oracle], lr=torch.tensor(1e-2).item(), betas=(0.9, 0.95)), oracle)
    assert torch.equal(ours, oracle)


def test_rates_are_bias_corrected_from_the_first_update() -> None:
    """The first step of Adam is lr, whatever the betas."""
    for betas in ((0.0, 0.0), (0.87, 0.98), (0.99, 0.9999)):
        p = nn.Parameter(torch.ones(3))
        train(AdamW([p], lr=0.25, betas=betas, weight_decay=0.0), p, steps=1)
        torch.testing.assert_close(p.detach(), torch.full((3,), 0.75))


def test_shapes_without_rows_train_in_every_format() -> None:
    for weight_format in ("fp32", "bf16", "fp8_e4m3", "nvfp4", "nvfp4_sticky"):
        for shape in ((), (1,), (0,), (3, 0), (2, 3, 5)):
            p = parameter(*shape, dtype=torch.bfloat16)
            optimizer = MPlusAdam([p], lr=1e-2, weight_format=weight_format, write_back="stochastic")
            train(optimizer, p)
            assert p.shape == torch.Size(shape)
            assert p.isfinite().all()


def test_views_that_are_not_contiguous_train_like_contiguous_ones() -> None:
    base = torch.linspace(-1, 1, 48).reshape(6, 8).to(torch.bfloat16)
    ends = []
    for p in (nn.Parameter(base.t()), nn.Parameter(base.t().contiguous())):
        optimizer = MPlusAdam([p], write_back="stochastic", weight_format="fp8_e5m2")
        train(optimizer, p)
        ends.append(p.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("build", [AdamW, Madam, MPlusAdam, AdditiveTwin])
def test_a_preview_is_what_the_next_update_does(build: type) -> None:
    p = parameter(4, 8, dtype=torch.bfloat16)
    optimizer = build([p])
    for t in range(3):
        p.grad = torch.full_like(p, 0.5 + t)
        before, seen = p.detach().float().clone(), optimizer.preview(p)
        optimizer.step()
        assert torch.equal(seen.update.before, before)
        assert torch.equal(seen.plan.store.read(seen.update.stored, p.shape), p.float())
        assert torch.equal((before + seen.update.step.delta).to(torch.bfloat16), p)
