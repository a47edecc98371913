"""AdamW against torch.optim.AdamW, Kahan against torch-optimi, M+Adam against the AdamW that it contains."""

from __future__ import annotations

import pytest
import torch
from optimi import AdamW as OptimiAdamW
from torch import Tensor

from mpadam import AdamW, MPlusAdam
from mpadam.optim.base import LowPrecisionOptimizer


def gradients(count: int, shape: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 0.1 for _ in range(count)]


def run(optimizer: torch.optim.Optimizer, p: Tensor, grads: list[Tensor]) -> None:
    for g in grads:
        p.grad = g.to(p.dtype)
        optimizer.step()


@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.95), 1e-8), ((0.87, 0.98), 1e-20)])
def test_fp32_adamw_is_torchs(betas: tuple[float, float], eps: float) -> None:
    """Teacher-forced: torch's optimizer gets the product's weight and moments before each of 100 updates."""
    w = torch.randn(7, 33, generator=torch.Generator().manual_seed(1))
    ours, theirs = torch.nn.Parameter(w.clone()), torch.nn.Parameter(w.clone())
    options = {"lr": 1e-2, "betas": betas, "eps": eps, "weight_decay": 0.1}
    optimizer, oracle = AdamW([ours], **options), torch.optim.AdamW([theirs], **options)
    for g in gradients(100, (7, 33)):
        if oracle.state[theirs]:
            oracle.state[theirs]["exp_avg"].copy_(optimizer.state[ours]["m"])
            oracle.state[theirs]["exp_avg_sq"].copy_(optimizer.state[ours]["v"])
        with torch.no_grad():
            theirs.copy_(ours)
        ours.grad, theirs.grad = g.clone(), g.clone()
        optimizer.step()
        oracle.step()
        # 4 float32 ulps of |w| + |step| for each of the two; a step is about lr
        assert ((ours - theirs).abs() <= 8 * 2**-23 * (theirs.abs() + 1e-2)).all()


def test_fp32_adamw_stays_torchs_over_300_updates() -> None:
    w = torch.randn(7, 33, generator=torch.Generator().manual_seed(1))
    ours, theirs = torch.nn.Parameter(w.clone()), torch.nn.Parameter(w.clone())
    options = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    grads = gradients(300, (7, 33))
    run(AdamW([ours], **options), ours, grads)
    run(torch.optim.AdamW([theirs], **options), theirs, grads)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def drift(p: Tensor, exact: Tensor) -> float:
    """RMS distance of the weights from those of float32 training."""
    return (p.detach().float() - exact.detach()).square().mean().sqrt().item()


def test_kahan_drifts_no_more_than_optimis() -> None:
    """1,000 updates, each below half an ulp of most weights, without decay (optimi rounds it outside its sum).

    The rules round differently (optimi keeps step and carry in bf16), so their ends are compared, not their bits.
    """
    w = (torch.randn(64, 32, generator=torch.Generator().manual_seed(2)) * 0.5).to(torch.bfloat16)
    grads = gradients(1000, (64, 32), seed=3)
    options = {"lr": 2e-5, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    exact = torch.nn.Parameter(w.float())
    run(torch.optim.AdamW([exact], **options), exact, [g.to(torch.bfloat16).float() for g in grads])
    ends = {}
    for name, build in {
        "kahan": lambda p: AdamW([p], write_back="kahan", state_dtype="fp32", **options),
        "nearest": lambda p: AdamW([p], state_dtype="fp32", **options),
        "optimi": lambda p: OptimiAdamW([p], kahan_sum=True, triton=False, foreach=False, **options),
    }.items():
        p = torch.nn.Parameter(w.clone())
        run(build(p), p, grads)
        ends[name] = drift(p, exact)
    half_ulp = w.float().abs().mean().item() * 2**-9  # what rounding the exact weights to bf16 costs at most
    assert ends["kahan"] < half_ulp
    assert ends["kahan"] < 1.1 * ends["optimi"]
    assert ends["nearest"] > 1.2 * ends["kahan"]  # or the test would not see a missing carry


@pytest.mark.parametrize("weight_format", ["fp32", "bf16", "fp8_e5m2", "nvfp4"])
@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan"])
@pytest.mark.parametrize("form", ["normalized_rho", "normalized_rho_tensor", "relative", "unnormalized_rho"])
def test_m_plus_adam_without_multiplicative_rate_is_adamw(form: str, write_back: str, weight_format: str) -> None:
    """Bit for bit, in every form, write-back and format."""
    w = torch.randn(5, 48, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    common = {"lr": 1e-2, "write_back": write_back, "weight_format": weight_format, "state_dtype": "fp32", "seed": 3}
    ours, theirs = torch.nn.Parameter(w.clone()), torch.nn.Parameter(w.clone())
    optimizers: list[tuple[LowPrecisionOptimizer, Tensor]] = [
        (MPlusAdam([ours], lr_mult=0.0, multiplicative_form=form, **common), ours),
        (AdamW([theirs], **common), theirs),
    ]
    for optimizer, p in optimizers:
        run(optimizer, p, gradients(20, (5, 48)))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, w)
    stored = [optimizer.store_of(p).tensors for optimizer, p in optimizers]
    assert all(torch.equal(stored[0][key], stored[1][key]) for key in stored[1])
