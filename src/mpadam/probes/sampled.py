"""What the next step of an optimizer does to sampled elements, one record for each parameter, and what became of it.

Optimizers of torch are replayed (`mpadam.probes.replay`); those of this package say by themselves what they are about
to do (`preview`), and their store what a part of it would leave, as for the probes of a study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpadam.numerics import spacing
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.store import WeightStore
from mpadam.probes.replay import Replica
from mpadam.probes.survival import held_still
from mpadam.probes.tiles import Tiles

STORED = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


@dataclass(frozen=True)
class Sampled:
    """A sample of one parameter. Tensors are float32 [tiles, width]; zeros behind the end of a row.

    stored: format and write-back of its weight.  weights: elements of the parameter.
    before: the weights.  step: what the step adds to them; zero where float32 cannot hold it either.  grad: as the
    optimizer gets it.  moved: what the step changes in the stored weight.  spacing: from the weight to the next larger
    one that can be stored.  largest: 0-d, of |w| in the whole parameter.
    moments: state -> int64 (3,), see `held_still`, as if it were kept in bf16.
    """

    name: str
    stored: str
    weights: int
    tiles: Tiles
    before: Tensor
    step: Tensor
    grad: Tensor
    moved: Tensor
    spacing: Tensor
    largest: Tensor
    moments: Mapping[str, Tensor]

    def stepped(self, p: Tensor) -> Sampled:
        """The same, when the optimizer of torch has made its step: what has become of the weights of `p`."""
        return replace(self, moved=self.tiles.take(p) - self.before)


def sample_step(optimizer: Optimizer, names: Mapping[Tensor, str], samples: Mapping[Tensor, Tiles]) -> list[Sampled]:
    """The step that `optimizer` is about to make of these samples, in their order; `moved` still has to be found for
    optimizers of torch."""
    if isinstance(optimizer, LowPrecisionOptimizer):
        return [_previewed(optimizer, p, names[p], tiles) for p, tiles in samples.items()]
    replica = Replica(optimizer, samples)
    return [_replayed(replica, p, names[p], tiles) for p, tiles in samples.items()]


def _replayed(replica: Replica, p: Tensor, name: str, tiles: Tiles) -> Sampled:
    before, stored = replica.before[p], STORED.get(p.dtype, str(p.dtype))
    return Sampled(
        name=name,
        stored=stored,
        weights=p.numel(),
        tiles=tiles,
        before=before,
        step=replica.after[p] - before,
        grad=replica.grad[p],
        moved=torch.zeros_like(before),
        spacing=spacing(before, stored if stored in ("bf16", "fp16") else "fp32"),
        largest=_largest(p),
        moments={state: _in_bf16(*entries) for state, entries in replica.moments(p).items()},
    )


def _previewed(optimizer: LowPrecisionOptimizer, p: Tensor, name: str, tiles: Tiles) -> Sampled:
    rows, taken = None, tiles
    if p.dim() > 1 and optimizer.plan_of(p).by_rows:
        rows, taken = _rows(optimizer.store_of(p), tiles, columns=p.shape[-1])
    preview = optimizer.preview(p, rows)
    x, update, store = preview.operands, preview.update, preview.plan.store
    delta = update.step.delta
    write = store.part_writer(x.stored, update.stored, update.before, x.bits())
    moments = {
        state: _in_bf16(*((taken.take(t) if t.shape == x.grad.shape else t.float()) for t in (x.moments[state], new)))
        for state, new in update.moments.items()
    }
    return Sampled(
        name=name,
        stored=store.format.name + ("" if store.write_back == "nearest" else f" {store.write_back}"),
        weights=p.numel(),
        tiles=tiles,
        before=taken.take(update.before),
        step=taken.take(torch.where(update.before + delta == update.before, 0.0, delta)),
        grad=taken.take(x.grad),
        moved=taken.take(write(delta) - write(torch.zeros_like(update.before))),
        spacing=taken.take(store.spacing(update.stored, update.before)),
        largest=_largest(p),
        moments=moments,
    )


def _rows(store: WeightStore, tiles: Tiles, *, columns: int) -> tuple[Tensor, Tiles]:
    """The rows of a matrix that a preview of these tiles needs, and where the tiles are among them: with a scale of the
    whole tensor, the rows that may hold the largest weight too."""
    needed, place = torch.unique(tiles.index[:, 0] // columns, return_inverse=True)
    taken = replace(tiles, index=place.unsqueeze(1) * columns + tiles.index % columns)
    if not store.plan.format.whole:
        return needed, taken
    scales = store.tensors["weight.scales"]
    scales = scales.reshape(-1, scales.shape[-1]).amax(1)
    return torch.cat([needed, (scales == scales.amax()).nonzero().flatten()]), taken


def _in_bf16(old: Tensor, new: Tensor) -> Tensor:
    """`held_still` of a state if it were, or as it is, kept in bf16. old, new: float32, around its update."""
    stored = old.to(torch.bfloat16)
    return held_still(stored, stored.to(torch.float32) + (new - old))


def _largest(w: Tensor) -> Tensor:
    low, high = torch.aminmax(w.detach())
    return torch.maximum(low.abs(), high.abs()).to(torch.float32)
