"""Every rule x write-back x format against float64, teacher-forced for 100 updates.

At each update the reference (`reference_rules`, numpy, from the equations) starts from the product's own stored weight
and states. Before rounding the two agree within 4 float32 ulps (2**-23 each, relative) of |w| + |step|; what is stored
lies within one ulp of the format, where the ulp is worked out here from the stored scales and not by the code under
test.

|step| is taken without the cancellation inside it: (b1 |m| + (1 - b1) |g|) for the first moment. Where w = 0 and m and
g nearly cancel, no float32 sum can be exact relative to what is left of it.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import reference_rules as reference
import torch
from torch import Tensor

from mpadam.numerics.formats import CARDS
from mpadam.optim.apollo import projection_matrix
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.names import OptimizerName, check_hyperparameters, optimizer_names, parse_optimizer_name
from mpadam.optim.optimizer import MPlusAdam
from mpadam.optim.registry import build_optimizer
from mpadam.optim.update import Preview

SHAPE = (6, 40)  # rows that fill neither a block of 16 nor one of 256
STEPS = 100  # of each rule in three formats; elsewhere only the write-back or the grid differs, and 10 do
LONG = {"fp32", "bf16", "fp8_e5m2"}
STATE_DTYPE = {
    "fp32": "fp32", "bf16": "bf16", "fp8_e4m3": "fp32", "fp8_e5m2": "bf16", "nvfp4": "bf16", "nvfp4_sticky": "fp32",
}  # fmt: skip


def hyper(name: OptimizerName, values: dict[str, float | None]) -> reference.Hyper:
    """The product's hyper-parameters under the reference's names."""
    v = check_hyperparameters(name, values)
    form = name.form or "none"
    if name.rule == "madam":
        return reference.Hyper(
            eta_m=v["lr"], b2=v["beta2"], eps=v["eps"], wd_mult=v["weight_decay"],
            tau=v.get("tau", 1e-8), clip=v["max_relative_step"], form=form,
        )  # fmt: skip
    return reference.Hyper(
        eta_a=v["lr"], eta_m=v.get("lr_mult", 0.0), b1=v["beta1"], b2=v["beta2"], eps=v["eps"], wd=v["weight_decay"],
        wd_mult=v.get("weight_decay_mult", 0.0), tau=v.get("tau", 1e-8), clip=v.get("max_relative_step"), form=form,
        block_exponent=v.get("block_scale_exponent", 0.0),
    )  # fmt: skip


def initial_weight(generator: torch.Generator, shape: tuple[int, int] = SHAPE) -> Tensor:
    """As a model's, and the corners: a row of zeros, tiny and large rows, single weights far below their block."""
    w = torch.randn(shape, generator=generator) * 0.02
    w[0] = 0.0
    w[1] *= 1e-4
    w[2] *= 50.0
    w[3, :5] = torch.tensor([0.0, 1e-9, -1e-9, 1e-5, 0.3])
    return w


def gradient(generator: torch.Generator, shape: tuple[int, int] = SHAPE) -> Tensor:
    """Over four decades, and a column of zeros."""
    g = torch.randn(shape, generator=generator) * 10 ** (torch.rand(shape, generator=generator) * 4 - 6)
    g[:, 3] = 0.0
    return g


def float64(t: Tensor) -> np.ndarray:
    return t.detach().to(torch.float64).numpy().copy()


def fp32_ulp(magnitude: np.ndarray) -> np.ndarray:
    return np.maximum(magnitude, np.finfo(np.float32).tiny) * 2.0**-23


def grid_ulp(x: np.ndarray, mantissa_bits: int, min_exponent: int) -> np.ndarray:
    """Spacing of a binary grid at |x|."""
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**min_exponent)))
    return 2.0 ** (exponent - mantissa_bits)


def format_ulp(optimizer: LowPrecisionOptimizer, p: Tensor, x: np.ndarray, name: str) -> np.ndarray:
    """One unit in the last place of the stored format at the values `x`, by the scales that are stored."""
    if name == "fp32":
        return grid_ulp(x, 23, -126)
    if name == "bf16":
        return grid_ulp(x, 7, -126)
    scales = optimizer.state[p]["weight.scales"].numpy()
    if name.startswith("fp8"):
        scale = np.repeat(2.0 ** (scales.astype(np.float64) - 127), 256, axis=1)[:, : x.shape[1]]
        return grid_ulp(x / scale, *((3, -6) if name == "fp8_e4m3" else (2, -14))) * scale
    block = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * optimizer.state[p]["weight.tensor_scale"].item()
    scale = np.repeat(block, 16, axis=1)[:, : x.shape[1]]
    return grid_ulp(x / scale, 1, 0) * scale


def states_of(optimizer: LowPrecisionOptimizer, p: Tensor) -> dict[str, np.ndarray]:
    return {k: float64(v) for k, v in optimizer.state[p].items() if k in ("m", "v", "v_e", "v_r")}


def projection_of(optimizer: LowPrecisionOptimizer, p: Tensor, t: int) -> np.ndarray | None:
    if "v_r" not in optimizer.state[p]:
        return None
    group = optimizer.param_groups[0]
    matrix = projection_matrix(
        p.shape, group["apollo_rank"], seed=group["seed"], tensor_id=0,
        refresh=(t - 1) // group["apollo_refresh"], device=p.device,
    )  # fmt: skip
    return float64(matrix)


class Case:
    """One optimizer over one parameter, and what it is compared with at each update."""

    def __init__(self, name: str, weight_format: str, values: dict | None = None, shape: tuple = SHAPE) -> None:
        self.name, self.format, self.shape = parse_optimizer_name(name), weight_format, shape
        self.generator = torch.Generator().manual_seed(11)
        weight = initial_weight(self.generator, shape)
        # fp32 and bf16 are the parameter itself; codes have a bf16 compute copy
        self.p = torch.nn.Parameter(weight if weight_format == "fp32" else weight.to(torch.bfloat16))
        self.optimizer = build_optimizer(
            [{"params": [self.p], "weight_format": weight_format}], name, values or {},
            masters=weight_format, state_dtype=STATE_DTYPE[weight_format], seed=5,
        )  # fmt: skip
        self.hyper = hyper(self.name, values or {})

    def update(self, t: int) -> tuple[reference.Result, Preview, np.ndarray]:
        """One update of both; the reference, what the product did, and the carry before it (zeros without one)."""
        state = self.optimizer.state[self.p]
        carry = float64(state["carry"]) if "carry" in state else np.zeros(self.shape)
        w = float64(self.optimizer.store_of(self.p).read())
        states, projection = states_of(self.optimizer, self.p), projection_of(self.optimizer, self.p, t)
        self.p.grad = gradient(self.generator, self.shape).to(self.p.dtype)
        rule = reference.RULES[self.name.rule]
        expected = rule(w, float64(self.p.grad), states, self.hyper, t, projection=projection)
        seen = self.optimizer.preview(self.p)
        seen = seen._replace(update=seen.update._replace(before=seen.update.before.clone()))  # the step may write to it
        self.optimizer.step()
        return expected, seen, carry

    def check(self, expected: reference.Result, got: Preview, carry: np.ndarray) -> None:
        before_rounding = float64(got.update.before + got.update.step.delta)
        assert np.all(np.abs(before_rounding - expected.w_new) <= 4 * fp32_ulp(expected.magnitude))
        stored = got.plan.store.read(got.update.stored, self.p.shape)
        after = float64(stored)
        ulp = np.maximum(
            format_ulp(self.optimizer, self.p, after, self.format),
            format_ulp(self.optimizer, self.p, expected.w_new + carry, self.format),
        )
        slack = 4 * fp32_ulp(expected.magnitude + np.abs(carry))
        assert np.all(np.abs(after - (expected.w_new + carry)) <= ulp + slack)
        if self.name.write_back == "kahan" and self.format != "fp32":
            lost = expected.w_new + carry - after
            kept = float64(self.optimizer.state[self.p]["carry"])
            assert np.all(np.abs(kept - lost) <= np.abs(lost) * 2.0**-8 + slack)  # bf16 keeps 8 bits of it
        if self.format not in ("fp32", "bf16"):
            assert torch.equal(self.p.detach(), stored.to(torch.bfloat16))

    def check_states(self, expected: reference.Result, got: Preview) -> None:
        """New states before rounding, and that what is kept is them, rounded to nearest."""
        g = np.abs(float64(got.operands.grad))
        injection, unsure = self.injection(expected, got)
        for key, value in expected.states.items():
            wanted, slack = (value + injection, unsure) if key == "m" else (value, 0.0)
            size = np.maximum(np.abs(value) + np.abs(injection), g) if key == "m" else np.abs(value)
            if key != "v_r":  # sums over a whole channel; `test_apollo_*` looks at it
                assert np.all(np.abs(float64(got.update.moments[key]) - wanted) <= 4 * fp32_ulp(size) + slack), key
            kept = self.optimizer.state[self.p][key]
            assert kept.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[STATE_DTYPE[self.format]]
            assert torch.equal(kept, got.update.moments[key].to(kept.dtype))

    def injection(self, expected: reference.Result, got: Preview) -> tuple[np.ndarray, np.ndarray]:
        """What ECO adds to m, and how far it is known: the error is that of a sum in float32. Zeros without ECO."""
        if not self.name.write_back.startswith("eco") or self.format == "fp32":
            return np.zeros(self.shape), np.zeros(self.shape)
        alpha = reference.eco_alpha(expected.states["v"], self.hyper, self.optimizer.state[self.p]["step"])
        error = expected.w_new - float64(got.plan.store.read(got.update.stored, self.p.shape))
        assert np.any(error != 0)
        return alpha * error, np.abs(alpha) * 4 * fp32_ulp(expected.magnitude)


@pytest.mark.parametrize("weight_format", CARDS)
@pytest.mark.parametrize("name", optimizer_names())
def test_every_update_agrees_with_float64(name: str, weight_format: str) -> None:
    case = Case(name, weight_format)
    steps = STEPS if case.name.write_back == "nearest" and weight_format in LONG else 10
    for t in range(1, steps + 1):
        expected, got, carry = case.update(t)
        case.check(expected, got, carry)
        case.check_states(expected, got)


@pytest.mark.parametrize(
    "values",
    [
        {"max_relative_step": None, "lr": 1e-3, "lr_mult": 0.05},
        {"max_relative_step": 0.1, "lr_mult": 0.5, "beta1": 0.0, "weight_decay": 0.0},
        {"tau": 1e-2, "eps": 1e-8, "beta1": 0.95, "beta2": 0.999, "weight_decay_mult": 0.3},
    ],
    ids=["no clip", "clip always", "large tau"],
)
@pytest.mark.parametrize("form", ["", "-rho-tensor", "-unnormalized"])
def test_other_hyperparameters_agree_too(form: str, values: dict) -> None:
    case = Case("m-plus-adam" + form, "fp32", values)
    for t in range(1, STEPS + 1):
        expected, got, carry = case.update(t)
        case.check(expected, got, carry)
        case.check_states(expected, got)


@pytest.mark.parametrize("exponent", [1.0, -0.5])
@pytest.mark.parametrize("weight_format", ["bf16", "fp8_e5m2"])
def test_a_rate_modulated_by_block_scales_agrees(weight_format: str, exponent: float) -> None:
    """Rows of two whole blocks and a short one, a row of zeros, a block of zeros."""
    case = Case("m-plus-adam", weight_format, {"block_scale_exponent": exponent, "lr_mult": 0.05}, (6, 600))
    for t in range(1, 11):
        expected, got, carry = case.update(t)
        case.check(expected, got, carry)
        case.check_states(expected, got)


def test_block_scales_are_the_same_in_a_compiled_step() -> None:
    """A short last block is where torch 2.13's CPU code generator loses elements."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((6, 600), generator=generator) * 0.02
    eager, compiled = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = [
        MPlusAdam([p], block_scale_exponent=1.0, lr_mult=0.05, compile=p is compiled) for p in (eager, compiled)
    ]
    for _ in range(3):
        g = torch.randn((6, 600), generator=generator)
        for p, optimizer in zip((eager, compiled), optimizers, strict=True):
            p.grad = g.clone()
            optimizer.step()
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (8, 8)], ids=["wide", "tall", "square"])
def test_apollo_agrees_on_either_side_over_a_refresh(shape: tuple[int, int]) -> None:
    """The projection changes at updates 8, 15, ...; the second moment of what is projected goes on."""
    case = Case("m-plus-adam-apollo-e", "fp32", {"apollo_refresh": 7, "apollo_rank": 3}, shape)
    projections = []
    for t in range(1, 31):
        expected, got, carry = case.update(t)
        case.check(expected, got, carry)
        v_r = expected.states["v_r"]
        # a sum of up to 8 float32 products, squared; small ones may cancel
        np.testing.assert_allclose(float64(got.update.moments["v_r"]), v_r, rtol=1e-4, atol=1e-5 * v_r.max())
        projections.append(projection_of(case.optimizer, case.p, t))
    changes = [t for t in range(2, 31) if not np.array_equal(projections[t - 1], projections[t - 2])]
    assert changes == [8, 15, 22, 29]


def test_the_reference_can_fail() -> None:
    """A negative control: with another beta2 in the product than in the reference the comparison does not pass."""
    case = Case("m-plus-adam", "fp32")
    case.optimizer.param_groups[0]["betas"] = (0.87, 0.981)
    expected, got, carry = case.update(1)
    with pytest.raises(AssertionError):
        case.check_states(expected, got)
    expected, got, carry = case.update(2)
    with pytest.raises(AssertionError):
        case.check(expected, got, carry)
