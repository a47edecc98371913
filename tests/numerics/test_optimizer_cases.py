"""Faults of optimizers in low precision that people reported in public, one test for each report."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from stores import write
from torch import Tensor

from mpadam import AdamW, Madam, MPlusAdam
from mpadam.numerics import get_format
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.store import StorePlan, WeightStore

DRAWS = 1000


def float32(*patterns: int) -> Tensor:
    return torch.tensor(np.array(patterns, dtype=np.uint32).view(np.float32).copy())


def store_of(values: Tensor, write_back: str, weight_format: str = "bf16", seed: int = 0) -> WeightStore:
    """A store whose bf16 parameter is the weight or its copy."""
    param = torch.zeros_like(values, dtype=torch.bfloat16)
    store = WeightStore(StorePlan(get_format(weight_format), write_back), param, {}, seed=seed)
    store.initialise()
    return store


# -- O1: special values through stochastic rounding ---------------------------------------------------------------


def test_o1_special_values_survive_the_store() -> None:
    special = float32(
        0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFC00000, 0xFFFFFFFF,  # NaN, with their payloads and signs
        0x7F800000, 0xFF800000, 0x00000000, 0x80000000,  # Inf and zeros
    )  # fmt: skip
    w = special.repeat(DRAWS)
    store = store_of(w, "stochastic")
    write(store, w, torch.zeros(()), t=1)
    got = store.read().reshape(DRAWS, -1)
    assert got[:, :5].isnan().all()
    assert (got[:, 5] == math.inf).all()
    assert (got[:, 6] == -math.inf).all()
    assert (got[:, 7:] == 0).all()
    assert not torch.signbit(got[:, 7]).any()


def test_o1_finite_values_go_to_one_of_their_two_neighbours() -> None:
    """fp32's largest, subnormals, and values between: bracketed by truncation of the bit pattern and one step up."""
    values = torch.cat((float32(0x7F7FFFFF, 0xFF7FFFFF), torch.tensor([1e-40, -1e-40, 0.1, -0.1, 1e-30, 3.3])))
    w = values.repeat(DRAWS)
    store = store_of(w, "stochastic")
    write(store, w, torch.zeros(()), t=1)
    got = store.read().reshape(DRAWS, -1).numpy()
    low = values.numpy().view(np.uint32) & np.uint32(0xFFFF0000)
    below, above = low.view(np.float32), (low + np.uint32(0x10000)).view(np.float32)
    assert np.isfinite(got).all()
    for column in range(len(values)):
        assert set(np.unique(got[:, column])) <= {below[column], above[column]}
    assert len(np.unique(got[:, 4])) == 2  # both neighbours do occur


def test_o1_exact_values_never_move() -> None:
    values = torch.tensor([1.0, -0.5, 2.0**-126, 2.0**-133, 3.3895314e38, 0.02]).to(torch.bfloat16).float()
    store = store_of(values, "stochastic")
    for t in range(1, DRAWS + 1):
        write(store, values, torch.zeros(()), t)
        assert torch.equal(store.read(), values)


@pytest.mark.parametrize("weight_format", ["fp32", "bf16", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_sticky"])
@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_o1_a_diverged_gradient_stays_visible(bad: float, write_back: str, weight_format: str) -> None:
    """A NaN or Inf in one gradient leaves a weight that is not finite: never a plausible number or a zero."""
    w = torch.linspace(-0.05, 0.05, 64).reshape(2, 32).to(torch.bfloat16)
    for optimizer, p in built(
        w, lambda p: MPlusAdam([p], write_back=write_back, weight_format=weight_format, state_dtype="fp32")
    ):
        p.grad = torch.full_like(p, 1e-3)
        p.grad[1, 7] = bad
        for _ in range(3):
            optimizer.step()
        assert not p[1, 7].isfinite()
        assert p[0].isfinite().all()


def built(
    w: Tensor, *builders: Callable[[Tensor], LowPrecisionOptimizer]
) -> list[tuple[LowPrecisionOptimizer, Tensor]]:
    parameters = [torch.nn.Parameter(w.clone()) for _ in builders]
    return [(build(p), p) for build, p in zip(builders, parameters, strict=True)]


# -- O2: rounding bits ----------------------------------------------------------------------------------------------


def noisy_run(first: int, last: int, params: list[Tensor], optimizer: LowPrecisionOptimizer, noise: int) -> list[str]:
    """Updates first..last while something else draws `noise` global random numbers at each; hashes after each."""
    hashes = []
    for t in range(first, last + 1):
        torch.rand(noise * t + 1)
        generator = torch.Generator().manual_seed(t)
        for p in params:
            p.grad = (torch.randn(p.shape, generator=generator) * 1e-2).to(p.dtype)
        optimizer.step()
        data = b"".join(p.detach().view(torch.uint8).numpy().tobytes() for p in params)
        hashes.append(hashlib.sha256(data).hexdigest())
    return hashes


def two_layers(weight_format: str = "bf16") -> tuple[list[Tensor], LowPrecisionOptimizer]:
    generator = torch.Generator().manual_seed(1)
    params = [torch.nn.Parameter((torch.randn(8, 16, generator=generator) * 0.02).to(torch.bfloat16)) for _ in range(2)]
    return params, AdamW(params, lr=1e-4, write_back="stochastic", weight_format=weight_format, seed=3)


@pytest.mark.parametrize("weight_format", ["bf16", "fp8_e5m2", "nvfp4"])
def test_o2_ranks_that_draw_unequally_stay_equal(weight_format: str) -> None:
    runs = []
    for rank in (0, 1):
        torch.manual_seed(100 + rank)
        runs.append(noisy_run(1, 20, *two_layers(weight_format), noise=5 * rank))
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 20


def test_o2_fifty_steps_are_25_and_resume_and_25() -> None:
    params, optimizer = two_layers()
    whole = noisy_run(1, 50, params, optimizer, noise=0)
    params, optimizer = two_layers()
    first = noisy_run(1, 25, params, optimizer, noise=1)
    resumed_params, resumed = two_layers()
    with torch.no_grad():
        for p, q in zip(resumed_params, params, strict=True):
            p.copy_(q)
    resumed.load_state_dict(optimizer.state_dict())
    assert first + noisy_run(26, 50, resumed_params, resumed, noise=2) == whole


def test_o2_the_global_generator_is_not_touched() -> None:
    """AdamW and AdamW with stochastic rounding see the same batches at one seed."""

    def batches(write_back: str) -> list[Tensor]:
        torch.manual_seed(0)
        p = torch.nn.Parameter(torch.full((4, 4), 0.5, dtype=torch.bfloat16))
        optimizer = MPlusAdam([p], write_back=write_back, second_moment="apollo_e", apollo_rank=2)
        drawn = []
        for _ in range(5):
            drawn.append(torch.randn(4, 4))
            p.grad = drawn[-1].to(torch.bfloat16)
            optimizer.step()
        return drawn

    assert all(torch.equal(a, b) for a, b in zip(batches("nearest"), batches("stochastic"), strict=True))


def test_o2_tensors_of_one_shape_and_steps_and_seeds_get_different_bits() -> None:
    w = torch.full((64, 64), 0.5)
    delta = torch.full((), 0.5 * 2**-10)  # an eighth of the spacing below 1

    def written(seed: int, tensor_id: int, t: int) -> Tensor:
        store = WeightStore(
            StorePlan(get_format("bf16"), "stochastic"), w.to(torch.bfloat16), {}, seed=seed, tensor_id=tensor_id
        )
        write(store, w, delta, t)
        return store.read()

    base = written(0, 0, 1)
    assert torch.equal(base, written(0, 0, 1))
    for other in (written(1, 0, 1), written(0, 1, 1), written(0, 0, 2)):
        agree = (base == other).float().mean().item()
        # independent draws with P(up) = 1/8 agree with probability 50/64
        assert agree == pytest.approx(50 / 64, abs=5 * math.sqrt(50 / 64 * 14 / 64 / w.numel()))


# -- O5: decay below half an ulp --------------------------------------------------------------------------------------

DECAYED = 0.5 * (1 - 1e-4) ** 1000  # 0.4524


def decay(p: Tensor, optimizer: LowPrecisionOptimizer) -> None:
    for _ in range(1000):
        p.grad = torch.zeros_like(p)
        optimizer.step()


@pytest.mark.parametrize(
    "build",
    [
        lambda p, write_back: AdamW([p], lr=1e-3, weight_decay=0.1, write_back=write_back),
        lambda p, write_back: Madam([p], lr=1e-3, weight_decay=0.1, write_back=write_back),
        lambda p, write_back: MPlusAdam(
            [p], lr=1e-3, lr_mult=1e-3, weight_decay=0.06, weight_decay_mult=0.04, write_back=write_back
        ),
    ],
    ids=["adamw", "madam", "m-plus-adam"],
)
def test_o5_decay_is_part_of_what_is_rounded(build: Callable[[Tensor, str], LowPrecisionOptimizer]) -> None:
    """Stochastic rounding has the right mean, Kahan the right sum; nearest stays put: bf16's true behaviour."""
    p = torch.nn.Parameter(torch.full((4096,), 0.5, dtype=torch.bfloat16))
    decay(p, build(p, "stochastic"))
    assert p.float().mean().item() == pytest.approx(DECAYED, rel=0.01)

    p = torch.nn.Parameter(torch.full((4,), 0.5, dtype=torch.bfloat16))
    optimizer = build(p, "kahan")
    decay(p, optimizer)
    total = p.float() + optimizer.state[p]["carry"].float()
    torch.testing.assert_close(total, torch.full_like(total, DECAYED), rtol=0.01, atol=0)

    p = torch.nn.Parameter(torch.full((4,), 0.5, dtype=torch.bfloat16))
    decay(p, build(p, "nearest"))
    assert (p == 0.5).all()


@pytest.mark.parametrize("weight_format", ["fp8_e5m2", "fp8_e4m3", "nvfp4_sticky"])
def test_o5_holds_for_stored_codes_with_a_float32_carry(weight_format: str) -> None:
    """A bf16 carry has 8 bits, and in these formats it is up to an eighth of the weight: steps of 1e-4 |w| are
    rounded away in it, or up, as in a bf16 weight. The docs say so."""
    ends = {}
    for carry_dtype in ("fp32", "bf16"):
        p = torch.nn.Parameter(torch.full((2, 32), 0.5, dtype=torch.bfloat16))
        options = {"write_back": "kahan", "weight_format": weight_format, "carry_dtype": carry_dtype}
        optimizer = AdamW([p], lr=1e-3, weight_decay=0.1, **options)
        decay(p, optimizer)
        ends[carry_dtype] = (optimizer.store_of(p).read() + optimizer.state[p]["carry"].float()).mean().item()
    # the decay acts on the stored value, which lags behind the sum by up to half an ulp
    assert ends["fp32"] == pytest.approx(DECAYED, rel=0.015)
    assert abs(ends["bf16"] - DECAYED) > 0.015 * DECAYED


# -- O6: moments in bf16 ----------------------------------------------------------------------------------------------


def second_moment_after(beta2: float, state_dtype: str, *, start: float, gradient: float, steps: int) -> float:
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = AdamW([p], lr=0.0, betas=(0.9, beta2), state_dtype=state_dtype)
    optimizer.state[p]["v"].fill_(start)
    for _ in range(steps):
        p.grad = torch.full_like(p, gradient)
        optimizer.step()
    return optimizer.state[p]["v"].item()


@pytest.mark.parametrize(("beta2", "expected"), [(0.999, 4.5e-5), (0.9999, 0.368)])
def test_o6_fp32_moments_decay_with_the_beta_that_was_given(beta2: float, expected: float) -> None:
    """Not with its bf16 value, which for 0.999 is 0.996 or 1."""
    got = second_moment_after(beta2, "fp32", start=1.0, gradient=0.0, steps=10_000)
    assert got == pytest.approx(beta2**10_000, rel=1e-3)
    assert got == pytest.approx(expected, rel=0.01)


def test_o6_bf16_moments_stall_with_a_beta2_near_one() -> None:
    """What bf16 states cannot do (docs/optimizers.md says so): forget with beta2 = 0.999, or average up to a constant.
    With the paper's beta2 = 0.98 they can."""
    assert second_moment_after(0.999, "bf16", start=1.0, gradient=0.0, steps=100) == 1.0
    assert second_moment_after(0.999, "bf16", start=0.0, gradient=1.0, steps=3000) <= 0.5
    assert second_moment_after(0.98, "bf16", start=1.0, gradient=0.0, steps=1000) < 1e-6
    assert second_moment_after(0.98, "bf16", start=0.0, gradient=1.0, steps=1000) > 0.85


# -- O12: what the carry starts from ----------------------------------------------------------------------------------


@pytest.mark.parametrize("param_dtype", [torch.float32, torch.bfloat16])
def test_o12_kahan_reaches_zero_in_1000_steps(param_dtype: torch.dtype) -> None:
    w = torch.ones(4, dtype=param_dtype)
    (kahan, p), (nearest, q) = built(
        w,
        lambda p: AdamW([p], lr=1e-3, weight_decay=0.0, weight_format="bf16", write_back="kahan", state_dtype="fp32"),
        lambda p: AdamW([p], lr=1e-3, weight_decay=0.0, weight_format="bf16", state_dtype="fp32"),
    )
    for _ in range(1000):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        kahan.step()
        nearest.step()
    assert p.float().abs().max().item() <= 0.01
    assert (q == 1.0).all()
    assert kahan.state[p]["carry"].dtype == kahan.state_dict()["state"][0]["carry"].dtype == torch.bfloat16


@pytest.mark.parametrize("weight_format", ["bf16", "fp8_e4m3", "nvfp4"])
def test_o12_the_carry_starts_as_what_the_format_cannot_hold(weight_format: str) -> None:
    w = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)) * 0.02
    p = torch.nn.Parameter(w.clone())
    optimizer = AdamW([p], weight_format=weight_format, write_back="kahan")
    stored, carry = optimizer.store_of(p).read(), optimizer.state[p]["carry"]
    assert torch.equal(p, stored)  # the parameter is now the copy of what is stored
    assert torch.equal(carry, (w - stored).to(torch.bfloat16))
    assert carry.abs().max() > 0


def test_o12_a_bf16_model_can_start_from_its_fp32_weights() -> None:
    """`model.to(bfloat16)` has already rounded: `reload_weights` gives masters and carries the finer values."""
    w = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) * 0.02
    (kahan, p), (masters, q) = built(
        w.to(torch.bfloat16),
        lambda p: AdamW([p], write_back="kahan"),
        lambda p: AdamW([p], weight_format="fp32"),
    )
    assert (kahan.state[p]["carry"] == 0).all()
    kahan.reload_weights({p: w})
    masters.reload_weights({q: w})
    assert torch.equal(kahan.state[p]["carry"], (w - w.to(torch.bfloat16).float()).to(torch.bfloat16))
    assert torch.equal(masters.store_of(q).read(), w)
    assert torch.equal(p, w.to(torch.bfloat16))
    assert torch.equal(q, w.to(torch.bfloat16))
