"""Nothing around a step changes it, and what a scheduler may move is no constant of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.optim import lr_scheduler as schedulers

from mpadam import AdamW, Madam, MPlusAdam
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.registry import build_optimizer

CASES = [
    ("m-plus-adam-apollo-e", "bf16"),
    ("m-plus-adam-apollo-e", "nvfp4"),
    ("m-plus-adam-rho-tensor", "fp32"),
    ("adamw-kahan", "fp8_e5m2"),
    ("adamw-sr", "nvfp4"),
    ("madam", "bf16"),
]
SHAPE = (32, 96)


def build(name: str, weight_format: str) -> tuple[nn.Parameter, LowPrecisionOptimizer]:
    values = torch.randn(SHAPE, dtype=torch.float32, generator=torch.Generator().manual_seed(0)) * 0.02
    p = nn.Parameter(values.bfloat16())
    groups = [{"params": [p], "weight_format": weight_format}]
    return p, build_optimizer(groups, name, {"lr": 1e-2}, masters=weight_format, state_dtype="fp32")


def give_gradient(p: Tensor, t: int) -> None:
    gradient = torch.randn(p.shape, dtype=torch.float32, generator=torch.Generator().manual_seed(t))
    p.grad = gradient.to(p.dtype)


def everything(p: Tensor, optimizer: LowPrecisionOptimizer) -> dict[str, Tensor]:
    found = {k: v for k, v in optimizer.state[p].items() if isinstance(v, Tensor)}
    return {k: v.detach().clone() for k, v in (found | {"p": p}).items()}


# -- surroundings -----------------------------------------------------------------------------------------------------


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def new_matmul_precision() -> Iterator[None]:
    """What newer code sets instead; torch refuses to mix the two."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = before


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "medium": lambda: matmul_precision("medium"),
    "new medium": new_matmul_precision,
    "inference": torch.inference_mode,
    "gradients": torch.enable_grad,
    "meta": lambda: torch.device("meta"),
}


def trained(name: str, weight_format: str, surroundings: Callable[[], AbstractContextManager]) -> dict[str, Tensor]:
    p, optimizer = build(name, weight_format)
    for t in range(1, 4):
        give_gradient(p, t)
        with surroundings():
            seen = optimizer.preview(p).update.step.delta
            optimizer.step()
            assert torch.is_autocast_enabled("cpu") == (surroundings is SURROUNDINGS["autocast"])
    return everything(p, optimizer) | {"delta": seen.expand_as(p).clone()}


@pytest.mark.parametrize(("name", "weight_format"), CASES)
def test_n4_nothing_around_a_step_changes_it(name: str, weight_format: str) -> None:
    expected = trained(name, weight_format, torch.no_grad)
    for kind, surroundings in SURROUNDINGS.items():
        found = trained(name, weight_format, surroundings)
        assert [k for k in expected if not torch.equal(expected[k], found[k])] == [], kind


@pytest.mark.parametrize("kind", SURROUNDINGS)
def test_n4_what_is_built_and_loaded_inside_goes_on_outside(kind: str) -> None:
    expected = trained("adamw-kahan", "fp8_e5m2", torch.no_grad)
    p, first = build("adamw-kahan", "fp8_e5m2")
    give_gradient(p, 1)
    first.step()
    saved = first.state_dict()
    values = torch.randn(SHAPE, dtype=torch.float32, generator=torch.Generator().manual_seed(0)) * 0.02
    p = nn.Parameter(values.bfloat16(), requires_grad=False)  # taken at its first step
    with SURROUNDINGS[kind]():
        second = AdamW([p], weight_format="fp8_e5m2", write_back="kahan", state_dtype="fp32", lr=1e-2)
        p.requires_grad_(True)
        give = torch.zeros_like(p, device="cpu") if kind == "meta" else torch.zeros_like(p)
        p.grad = give.clone()
        second.step()
        second.load_state_dict(saved)
        second.reload_weights()
    for t in (2, 3):
        give_gradient(p, t)
        second.step()
    found = everything(p, second)
    assert [k for k in found if not torch.equal(expected[k], found[k])] == []


def test_a_closure_runs_in_the_surroundings_of_the_step() -> None:
    p, optimizer = build("m-plus-adam-apollo-e", "bf16")
    seen = []

    def closure() -> Tensor:
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
        give_gradient(p, 1)
        return torch.zeros(())

    with torch.autocast("cpu", torch.bfloat16):
        optimizer.step(closure)
    assert seen == [(True, True)]


def test_a_scaler_scales_back_and_skips_what_overflowed() -> None:
    ends = []
    for scaled in (False, True):
        p, optimizer = build("m-plus-adam", "fp32")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        for t in (1, 2, 3):
            give_gradient(p, t)
            scaler.scale(torch.zeros(()))  # as of a loss
            p.grad *= scaler.get_scale() * (torch.inf if t == 2 else 1.0)
            if scaled or t != 2:
                scaler.step(optimizer)
            scaler.update()
        ends.append(everything(p, optimizer))
        assert optimizer.state[p]["step"] == 2
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])


@pytest.mark.parametrize("layout", ["transposed", "expanded", "zeros kept", "wide"])
def test_gradients_of_any_layout(layout: str) -> None:
    p, optimizer = build("adamw", "fp32")
    q, other = build("adamw", "fp32")
    for t in (1, 2):
        give_gradient(p, t)
        values = p.grad.clone()
        if layout == "transposed":
            q.grad = values.t().contiguous().t()
        elif layout == "expanded":
            p.grad = torch.full_like(values, 0.5)
            q.grad = torch.tensor(0.5).bfloat16().expand_as(values)
        elif layout == "zeros kept":
            other.zero_grad(set_to_none=False)
            q.grad = values if q.grad is None else q.grad.add_(values)
        else:
            q.grad_dtype = None  # of any dtype
            q.grad = values.double()
        optimizer.step()
        other.step()
    assert torch.equal(p, q)


# -- what schedulers move ---------------------------------------------------------------------------------------------


def scheduled(make: Callable[[Any], Any], steps: int, *, build: Any = MPlusAdam, **options: Any) -> list[float]:
    p = nn.Parameter(torch.ones(4, 6))
    optimizer = build([p], **options)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        p.grad = torch.ones_like(p)
        optimizer.step()
        scheduler.step()
        found.append(float(optimizer.param_groups[0]["lr"]))
    optimizer.step()
    assert p.isfinite().all()
    return found


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "linear to zero": lambda o: schedulers.LinearLR(o, start_factor=1 / 3, end_factor=0.0, total_iters=10),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 1e-3, total_steps=13),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.0, 1e-3, step_size_up=3),
    "warm restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 6),
    "polynomial": lambda o: schedulers.PolynomialLR(o, 9),
    "numpy": lambda o: schedulers.LambdaLR(o, lambda epoch: np.float32(1) / (1 + epoch)),
    "chain": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 4), schedulers.LinearLR(o, 1.0, 0.0, 7)], [4]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("lr", [1e-3, torch.tensor(1e-3), torch.tensor(1e-3, dtype=torch.float64), np.float32(1e-3)])
def test_n6_schedulers_of_torch_run_to_their_end(name: str, lr: Any) -> None:
    for build in (MPlusAdam, Madam):
        if build is MPlusAdam or "cycl" not in name:  # those move beta1, which Madam has not
            own = lr.clone() if isinstance(lr, Tensor) else lr  # a scheduler writes into it
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                assert len(scheduled(SCHEDULERS[name], 12, build=build, lr=own)) == 12


def test_n6_a_rate_below_zero_by_rounding_is_zero() -> None:
    p = nn.Parameter(torch.ones(4, 6))
    optimizer = MPlusAdam([p], lr=1e-3, weight_decay=0.1)
    p.grad = torch.ones_like(p)
    optimizer.param_groups[0].update(lr=-3e-20, lr_mult=-1e-19, weight_decay=-1e-18)
    optimizer.step()
    assert torch.equal(p, torch.ones(4, 6))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["lr_mult"], group["weight_decay"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("value", [-1e-12, -1e-3, torch.tensor(-1e-4), torch.tensor(-1e-12, dtype=torch.float64)])
@pytest.mark.parametrize("key", ["lr", "lr_mult"])
def test_n6_truly_negative_rates_are_refused(key: str, value: Any) -> None:
    p = nn.Parameter(torch.ones(4, 6))
    optimizer = MPlusAdam([p])
    optimizer.param_groups[0][key] = value
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match=f"{key} = -"):
        optimizer.step()
    with pytest.raises(ValueError, match="lr = -"):
        MPlusAdam([p], lr=-3e-20)


def test_a_tensor_as_multiplicative_rate_stays_the_callers() -> None:
    rate = torch.tensor(4e-3)
    ends = []
    for given in (rate, 1e-3):
        p = nn.Parameter(torch.ones(4, 6))
        optimizer = MPlusAdam([p], lr_mult=given)
        rate.fill_(1e-3)
        p.grad = torch.ones_like(p)
        optimizer.step()
        ends.append(p.detach())
    torch.testing.assert_close(*ends, rtol=1e-6, atol=0)


def test_numbers_of_numpy_do_not_get_into_a_checkpoint() -> None:
    optimizer = AdamW([nn.Parameter(torch.ones(3))])
    optimizer.param_groups[0].update(lr=np.float64(1e-3), betas=(np.float64(0.8), 0.9), initial_lr=np.float32(1e-3))
    group = optimizer.state_dict()["param_groups"][0]
    assert {type(x) for x in (group["lr"], group["initial_lr"], *group["betas"])} == {float}


MOVED = {
    "beta1": lambda t: {"betas": (0.9 - t / 50, 0.98)},
    "all": lambda t: {
        "betas": (0.8 + t / 50, 0.9 + t / 100), "eps": 1e-8 * t, "tau": 1e-6 * t, "max_relative_step": 0.1 * t,
        "lr": 1e-3 / t, "lr_mult": 1e-2 / t, "weight_decay": 0.1 / t, "weight_decay_mult": 0.1 / t,
    },
}  # fmt: skip


@pytest.mark.slow
def test_n5_what_moves_compiles_once_and_counts() -> None:
    """OneCycleLR moves beta1, then all numbers move; the steps are those of the eager optimizer."""
    ends = []
    for compile in (False, True):
        p, _ = build("adamw", "bf16")
        optimizer = MPlusAdam([p], compile=compile, state_dtype="fp32", block_scale_exponent=0.5)
        scheduler = schedulers.OneCycleLR(optimizer, 1e-3, total_steps=12)
        before, betas = counters["stats"]["unique_graphs"], set()
        for t in range(1, 9):
            give_gradient(p, t)
            if t > 4:
                optimizer.param_groups[0].update(MOVED["all"](t - 4) | {"block_scale_exponent": 0.1 * t})
            optimizer.step()
            scheduler.step()
            betas.add(optimizer.param_groups[0]["betas"])
        assert counters["stats"]["unique_graphs"] - before == int(compile)
        assert len(betas) == 8
        ends.append([optimizer.state[p][name] for name in ("m", "v")])
    for eager, compiled in zip(*ends, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("which", MOVED)
def test_n5_a_form_and_its_numbers_are_the_constants(which: str) -> None:
    """What a compiled graph takes as tensors is all that an option may move."""
    from mpadam.optim.compiled import scalar_tensor
    from mpadam.optim.options import constants

    optimizer = MPlusAdam([nn.Parameter(torch.ones(4, 6))], block_scale_exponent=0.5)
    forms = set()
    for t in range(1, 5):
        group = optimizer.param_groups[0] | MOVED[which](t)
        given = constants(group, compress=False)
        forms.add(given.form())
        traced = given.form().with_numbers(scalar_tensor(given.numbers()).unbind())
        for key in ("eps", "tau", "max_relative_step", "block_scale_exponent"):
            assert float(getattr(traced, key)) == pytest.approx(getattr(given, key), rel=1e-6)
        for mine, theirs in zip((*traced.decay1, *traced.decay2), (*given.decay1, *given.decay2), strict=True):
            assert mine == torch.tensor(theirs, dtype=torch.float32)
    assert len(forms) == 1
