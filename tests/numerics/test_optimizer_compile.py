"""A compiled step gives the eager weights within one ulp, and is not compiled again when a rate changes."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from mpadam.numerics import spacing
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.registry import build_optimizer

CASES = [
    ("m-plus-adam", "fp32"),
    ("m-plus-adam-sr", "bf16"),
    ("additive-twin-kahan", "bf16"),
    ("adamw-kahan", "fp8_e5m2"),
    ("m-plus-adam-apollo-e", "nvfp4"),
]
SHAPES = ((8, 300), (5,))  # a row that fills no block


def build(name: str, weight_format: str, *, compile: bool) -> tuple[list[torch.nn.Parameter], LowPrecisionOptimizer]:
    generator = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter((torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16)) for shape in SHAPES
    ]
    groups = [{"params": params, "weight_format": weight_format}]
    return params, build_optimizer(groups, name, {}, masters=weight_format, state_dtype="fp32", compile=compile)


def ulp(before: torch.Tensor, after: torch.Tensor, weight_format: str) -> torch.Tensor:
    """One unit in the last place of |w| + |step|; for codes, of the largest weight.

    In float32 two: a compiled square root differs from the eager one in the last bit (torch 2.13, CPU), and each of
    the two branches takes one.
    """
    size = before.abs() + (after - before).abs()
    if weight_format == "fp32":
        return size * 2 * 2**-23
    if weight_format == "bf16":
        return spacing(size, "bf16")
    return after.abs().amax() / {"fp8_e5m2": 4, "nvfp4": 2}[weight_format]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weight_format"), CASES)
def test_compiled_steps_agree_and_are_compiled_once(name: str, weight_format: str) -> None:
    eager_params, eager = build(name, weight_format, compile=False)
    params, compiled = build(name, weight_format, compile=True)
    graphs = []
    for t in range(1, 5):
        for optimizer in (eager, compiled):
            optimizer.param_groups[0]["lr"] = 1e-3 / t
        for p, q in zip(eager_params, params, strict=True):
            p.grad = (torch.randn(p.shape, generator=torch.Generator().manual_seed(t)) * 1e-2).to(p.dtype)
            q.grad = p.grad.clone()
        before = [eager.store_of(p).read().clone() for p in eager_params]
        eager.step()
        compiled.step()
        graphs.append(counters["stats"]["unique_graphs"])
        for w, p, q in zip(before, eager_params, params, strict=True):
            expected, got = eager.store_of(p).read(), compiled.store_of(q).read()
            assert ((got - expected).abs() <= ulp(w, expected, weight_format)).all()
            torch.testing.assert_close(compiled.state[q]["v"], eager.state[p]["v"], rtol=1e-6, atol=0)
        with torch.no_grad():  # the next update starts from the same weights and states
            for p, q in zip(eager_params, params, strict=True):
                q.copy_(p)
        compiled.load_state_dict(eager.state_dict())
    assert len(set(graphs)) == 1
    assert graphs[0] > 0
