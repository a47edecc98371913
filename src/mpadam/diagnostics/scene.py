"""Weights put before an update: among typical neighbours, so that a block's scale is what it would be in a model.

Figure 1 and Table 1 ask what becomes of an update of one weight. In block formats that depends on the weights which
share its scale. A scene has the weights in question (the probes) in blocks of their own, with neighbours at fixed
quantiles of N(0, deviation), which get no update.
"""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor, nn

from mpadam.numerics.base import Format
from mpadam.optim.card import Step
from mpadam.optim.names import parse_optimizer_name
from mpadam.optim.registry import build_optimizer
from mpadam.optim.rules import RULES
from mpadam.study.diagnostics import Reference

COPIES_SHARE = 64  # of that many weights of a block one may be a copy: the rest keeps it typical


@dataclass(frozen=True)
class Scene:
    """weights: float32 (rows, width), a row per block.  places: (probes, copies), flat indices of the probes."""

    weights: Tensor
    places: Tensor

    def at_probes(self, x: Tensor) -> Tensor:
        """(probes, copies) of a tensor of the weights' shape."""
        return x.flatten()[self.places]

    def spread(self, values: Tensor) -> Tensor:
        """A tensor of the weights' shape: `values`, (probes,) or (probes, copies), at the probes, 0 elsewhere."""
        out = torch.zeros_like(self.weights).flatten()
        out[self.places] = values[:, None].expand_as(self.places) if values.ndim == 1 else values
        return out.view_as(self.weights)


def scene(values: Tensor, fmt: Format, *, deviation: float, copies: int = 1, typical_rms: bool = False) -> Scene:
    """`copies` weights of each of `values` (float32, (probes,)), stored in `fmt`.

    Copies of one value may share a block, if it is long. One more block holds the tensor's largest weight, which stays
    where it is, so that no probe moves the tensor scale of NVFP4. typical_rms: rows of small weights make the root mean
    square of the tensor `deviation`, for a form that divides by it.
    """
    width = fmt.block[1]
    together = 1 if copies == 1 else max(1, width // COPIES_SHARE)
    rows_each = -(-copies // together)
    neighbours = typical(width, deviation)
    probes = torch.cat((torch.full((together,), torch.nan), neighbours[: width - together]))
    rows = probes.repeat(len(values) * rows_each, 1)
    rows = torch.where(rows.isnan(), values.repeat_interleave(rows_each)[:, None], rows)
    largest = neighbours.clone()
    largest[0] = 2 * max(values.abs().max().item(), 5 * deviation)
    weights = torch.cat((rows, largest[None]))
    if typical_rms:
        weights = torch.cat((weights, filler(weights, deviation)))
    first = torch.arange(len(values) * rows_each).view(len(values), rows_each, 1) * width
    places = (first + torch.arange(together)).flatten(1)[:, :copies]
    return Scene(weights, places)


def typical(width: int, deviation: float) -> Tensor:
    """A block of N(0, deviation) without chance: quantiles of |w|, the largest first, signs in turn; (width,)."""
    normal = NormalDist(0.0, deviation)
    magnitudes = [normal.inv_cdf(0.5 + (width - 0.5 - k) / (2 * width)) for k in range(width)]
    return torch.tensor([m if k % 2 == 0 else -m for k, m in enumerate(magnitudes)])


def filler(weights: Tensor, deviation: float) -> Tensor:
    """Rows which, below `weights` (rows, width), give the whole tensor the root mean square `deviation`."""
    width, total = weights.shape[1], weights.double().square().sum().item()
    rows = max(1, round(2 * total / (width * deviation**2)))
    missing = deviation**2 * (weights.numel() + rows * width) - total
    return torch.full((rows, width), (missing / (rows * width)) ** 0.5)


def reference_rates(name: str, options: Reference) -> dict[str, float]:
    """The rates of an optimizer in the reference run, its decay switched off."""
    branches = RULES[parse_optimizer_name(name).rule].branches
    if len(branches) == 1:
        return {"lr": options.lr_adamw if branches == ("additive",) else options.lr_mult, "weight_decay": 0.0}
    return {"lr": options.lr, "lr_mult": options.lr_mult, "weight_decay": 0.0, "weight_decay_mult": 0.0}


def reference_step(name: str, weights: Tensor, gradient: Tensor, options: Reference) -> Step:
    """The first step of an optimizer's rule, at its reference rates, for each of `weights` (float32, (n,)).

    In the first step m_hat / sqrt(v_hat) is the sign of the gradient, which is also what a lasting gradient ends in.
    The tensor that the rule sees has the root mean square `options.deviation`.
    """
    parsed = parse_optimizer_name(name)
    rest = filler(weights[:, None], options.deviation)[:, 0] if parsed.form == "normalized_rho_tensor" else weights[:0]
    p = nn.Parameter(torch.cat((weights, rest)))
    optimizer = build_optimizer([{"params": [p]}], parsed, reference_rates(name, options), masters="fp32")
    p.grad = torch.cat((gradient, torch.zeros_like(rest)))
    return Step(*(part.expand_as(p)[: len(weights)] for part in optimizer.preview(p).update.step))
