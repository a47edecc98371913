"""Layers and sizes: which updates survive in each layer, and how large steps are next to what the format resolves.

Only attention and MLP projections of numbered layers count, since only these are stored in low precision. The parts of
an update, and what it means that one is intended and survives, are those of `mpadam.probes.survival`.

Distance to the neighbour, in records and figures "spacing": from the stored weight to the next value on the side to
which the step points, on the block scales of the whole update. It is half of `mpadam.numerics.spacing`, which
UpdateProbe uses and which is always that to the next larger |w|, where the weight is a power of two and the step points
towards zero. A nearest write moves a weight if the step is longer than about half of it. It is found by asking the
format for the two values that stochastic rounding chooses between next to the weight, so it holds for every format that
rounds. Weights that are zero, and those at the end of their block's range whose step points outwards, have none;
neither has any float32 weight.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.store import encoded
from mpadam.optim.update import Preview
from mpadam.probes.survey import PROJECTIONS, members
from mpadam.probes.survival import BINS, bin_of, count_survival, part_of, parts_of, survival_record

SMALLEST, LARGEST = -16, 11
"""Octave e holds 2**e <= |step| / spacing < 2**(e + 1); the first takes everything below, the last everything above."""

_BESIDE = 2.0**-12  # of a weight: far less than the spacing of any format that rounds
_UP_OR_DOWN = (0, 0x7FFFFFFF)  # random bits at either end of their range


@dataclass(frozen=True)
class _Sums:
    """Of one parameter. squares: sum of w**2.  moved: float64 (bins of |w|,), sum of |part|.  octaves: int64."""

    survival: Tensor
    weights: Tensor
    squares: Tensor
    part_squares: dict[str, Tensor]
    moved: dict[str, Tensor]
    octaves: dict[str, Tensor]


@torch.no_grad()
def survey_layers(model: nn.Module, optimizer: LowPrecisionOptimizer) -> dict[str, Any]:
    """What the step that `optimizer` is about to make would do in each layer; JSON, nothing is changed.

    layers: a list of {"layer", "role", "weights", "rms", and per part "intended", "survived", "rms" of the step}.
    sizes: role -> {"bins", "weights", and per part "step", the mean |step| of each bin of |w|, and "octaves",
        "counts": steps by |step| / spacing}.
    """
    found: dict[tuple[int, str], list[_Sums]] = {}
    for name, role, p in members(model, optimizer):
        if (layer := layer_of(name)) is not None and role in PROJECTIONS:
            found.setdefault((layer, role), []).append(_sums(optimizer.preview(p)))
    roles = dict.fromkeys(role for _, role in found)
    return {
        "layers": [
            {"layer": layer, "role": role, **_layer_record(sums, optimizer.rule)}
            for (layer, role), sums in sorted(found.items())
        ],
        "sizes": {
            role: _size_record([one for (_, own), sums in found.items() if own == role for one in sums])
            for role in roles
        },
    }


def layer_of(name: str) -> int | None:
    """The number after `layers` in a parameter's name; None without one."""
    words = name.split(".")
    place = words.index("layers") + 1 if "layers" in words else len(words)
    return int(words[place]) if place < len(words) and words[place].isdecimal() else None


def _sums(preview: Preview) -> _Sums:
    w, parts = preview.update.before, parts_of(preview.plan.rule)
    index, (outwards, inwards) = bin_of(w).flatten(), to_neighbours(preview)
    part_squares, moved, octaves = {}, {}, {}
    for name in parts:
        part = part_of(preview.update.step, name).expand_as(w)
        size = part.abs()
        part_squares[name] = part.square().sum(dtype=torch.float64)
        moved[name] = torch.bincount(index, size.flatten().double(), minlength=len(BINS))
        octaves[name] = _octaves(size, torch.where((part < 0) == (w < 0), outwards, inwards))
    squares = w.square().sum(dtype=torch.float64)
    weights = torch.bincount(index, minlength=len(BINS))
    return _Sums(count_survival(preview), weights, squares, part_squares, moved, octaves)


def to_neighbours(preview: Preview) -> tuple[Tensor, Tensor]:
    """Distance from each stored weight to its neighbours away from zero and towards it, float32 [*shape]; 0 where there
    is none."""
    store, update = preview.plan.store, preview.update
    none = torch.zeros_like(update.before)
    if store.format.dtype is torch.float32:
        return none, none
    rounded = store.format.rounding_on(encoded(update.stored, update.before.shape))
    w = rounded(update.before, None)
    ends = [torch.full(w.shape, bits, dtype=torch.int32, device=w.device) for bits in _UP_OR_DOWN]
    up, down = (w * (1 + side * _BESIDE) for side in (1, -1))
    return tuple((rounded(x, ends[0]) - rounded(x, ends[1])).abs() for x in (up, down))  # type: ignore[return-value]


def _octaves(size: Tensor, spacing: Tensor) -> Tensor:
    exponent = torch.frexp(size / spacing).exponent - 1
    index = exponent.clamp(SMALLEST, LARGEST) - SMALLEST + 1
    counts = torch.where((size > 0) & (spacing > 0), index, 0).flatten()
    return torch.bincount(counts, minlength=LARGEST - SMALLEST + 2)[1:]


def _layer_record(sums: list[_Sums], rule: str) -> dict[str, Any]:
    survival = survival_record(torch.stack([one.survival for one in sums]).sum(0), rule)
    weights = sum(survival["weights"])
    record: dict[str, Any] = {"weights": weights, "rms": _root([one.squares for one in sums], weights)}
    for name in parts_of(rule):
        counts = {key: sum(survival[name][key]) for key in ("intended", "survived")}
        record[name] = {**counts, "rms": _root([one.part_squares[name] for one in sums], weights)}
    return record


def _root(squares: list[Tensor], count: int) -> float:
    return math.sqrt(float(torch.stack(squares).sum()) / count)


def _size_record(sums: list[_Sums]) -> dict[str, Any]:
    weights = torch.stack([one.weights for one in sums]).sum(0)
    held = weights.nonzero().flatten()
    record: dict[str, Any] = {"bins": [BINS[i] for i in held.tolist()], "weights": weights[held].tolist()}
    for name in sums[0].moved:
        moved = torch.stack([one.moved[name] for one in sums]).sum(0)
        octaves = torch.stack([one.octaves[name] for one in sums]).sum(0)
        seen = octaves.nonzero().flatten()
        record[name] = {
            "step": (moved[held] / weights[held]).tolist(),
            "octaves": (seen + SMALLEST).tolist(),
            "counts": octaves[seen].tolist(),
        }
    return record
