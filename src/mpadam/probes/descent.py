"""Descent: how near an update is to what "Theorem 4.1" of the paper assumes (docs/algorithm.md, (43) and (44)).

It assumes <g, u_a> <= -eta_a ||g||^2 and ||u_a|| <= eta_a ||g||, and the same of (g_e, z); together they force
u_a = -eta_a g and z = -eta_m g_e. What is measured, over all parameters together and by role:

    cosine      cos(-g, u)
    at_least    ||u|| / ||g||            no smaller eta has the second property
    at_most     -<g, u> / ||g||^2        no larger eta has the first

so that an eta with both exists only at cosine 1. g_e = ln(2) w g; z is log2(1 + u_m), which matches g_e, or
ln(1 + u_m), as the paper writes it: the cosines are the same, the intervals differ by the factor ln(2).
Sums are float64. For the additive twin u_m is its second branch relative to the weight.
"""

import math
from typing import Any

import torch
from torch import Tensor

from mpadam.optim.branches import LN2
from mpadam.optim.rules import RULES
from mpadam.optim.update import Preview


def descent_sums(preview: Preview) -> dict[str, Tensor]:
    """branch -> float64 (4,): <g, u>, <g, g>, <u, u>, and for how many weights z is not defined (1 + u_m <= 0)."""
    branches, step = RULES[preview.plan.rule].branches, preview.update.step
    grad = preview.operands.grad.to(torch.float32)
    sums = {}
    if "additive" in branches:
        sums["additive"] = _products(grad, step.additive, undefined=None)
    if "multiplicative" in branches:
        w = preview.update.before
        relative = torch.where(w == 0, 0.0, step.multiplicative / w)
        undefined = relative <= -1.0  # only without a clip (Algorithm 1)
        z = torch.where(undefined, 0.0, relative).log1p()
        sums["multiplicative"] = _products(LN2 * w * grad, z, undefined=undefined.sum())
    return sums


def _products(g: Tensor, u: Tensor, *, undefined: Tensor | None) -> Tensor:
    products = [(x * y).sum(dtype=torch.float64) for x, y in ((g, u), (g, g), (u, u))]
    return torch.stack([*products, products[0].new_zeros(()) if undefined is None else undefined.double()])


def descent_record(sums: dict[str, Tensor]) -> dict[str, Any]:
    """What the sums of `descent_sums` say, as JSON; numbers that are not finite are null."""
    record: dict[str, Any] = {}
    if "additive" in sums:
        record["additive"] = _measures(sums["additive"].tolist(), factor=1.0)
    if "multiplicative" in sums:
        values = sums["multiplicative"].tolist()
        record["ln"] = _measures(values, factor=1.0)
        record["log2"] = _measures(values, factor=1.0 / LN2)
        record["undefined"] = int(values[3])
    return record


def _measures(sums: list[float], *, factor: float) -> dict[str, float | None]:
    gu, gg, uu, _ = sums
    length = math.sqrt(gg * uu)
    return {
        "cosine": number(-gu / length if length else math.nan),
        "at_least": number(factor * math.sqrt(uu / gg) if gg else math.nan),
        "at_most": number(factor * -gu / gg if gg else math.nan),
    }


def number(x: float) -> float | None:
    """JSON has no infinities."""
    return x if math.isfinite(x) else None
