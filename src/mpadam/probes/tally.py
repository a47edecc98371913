"""From samples of a step to the line that `UpdateProbe` writes: what is lost, where, and what other stores would keep.

Counts of a sample times its weight estimate those of the whole parameter; where all of it was sampled they are exact.

Every trial of another store starts from the weight as that format holds it, to nearest, without a history, and takes
one step. Parts of a step are rounded on the scales of the whole, as in `mpadam.optim.store.StorePlan.part_writer`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpadam.numerics import get_format, random_bits
from mpadam.optim.optimizer import MPlusAdam
from mpadam.optim.store import StorePlan
from mpadam.probes.sampled import Sampled
from mpadam.probes.survival import BINS, bin_of, fate

#: binades of |step| / spacing, the first for all below and the last for all above
LOWEST, HIGHEST = -16, 4
SPACINGS = tuple(range(LOWEST, HIGHEST + 1))
FORMATS = ("bf16", "fp8_e5m2", "fp8_e4m3", "nvfp4")
REMEDIES = ("stochastic", "kahan")
STORED = "stored"
M_PLUS_ADAM = "m-plus-adam"


def tally(samples: list[Sampled], *, seed: int, step: int) -> dict[str, Any]:
    """The numbers of one measurement, as JSON; see docs/update-probe.md for its fields."""
    counts: dict[str, Tensor] = {}
    by_width = defaultdict(list)
    for layer, sample in enumerate(samples):
        by_width[sample.before.shape[1], sample.before.device].append((layer, sample))
    mended = {"bf16", *(sample.stored.split()[0] for sample in samples)} & set(FORMATS)
    for rows in by_width.values():
        for key, value in _rows(rows, mended, layers=len(samples), seed=seed, step=step).items():
            counts[key] = counts.get(key, 0) + value.double().cpu()
    weights = torch.tensor([sample.tiles.weight for sample in samples], dtype=torch.float64, device="cpu")
    return _record(samples, {key: value.flatten(1) * weights.unsqueeze(1) for key, value in counts.items()})


def _rows(rows: list[tuple[int, Sampled]], mended: set[str], *, layers: int, seed: int, step: int) -> dict[str, Tensor]:
    """Name -> counts [layers, ...] of samples of one width; remedies are tried in the formats of `mended`:

    fate/FORMAT int64 [layers, bins of |w|, 3], gap/FORMAT int64 [layers, SPACINGS] of intended steps,
    size/TRIAL float64 [layers, 4]: intended, lost, sum of |step|, and how much of it is made in its direction.
    """
    w, change, grad, moved, gap = (
        torch.cat([getattr(sample, name) for _, sample in rows])
        for name in ("before", "step", "grad", "moved", "spacing")
    )
    change = _finite(change)
    layer = torch.cat([torch.full_like(s.before[:, :1], n, dtype=torch.int64) for n, s in rows])
    largest = torch.cat([s.largest.expand(len(s.before), 1) for _, s in rows])
    bits = random_bits(seed=seed, step=step, tensor_id=rows[0][0], shape=w.shape, device=w.device)
    place = layer * len(BINS) + bin_of(w)
    counts = _counted(STORED, place, change, kept=moved, gap=gap, layer=layer, layers=layers)
    nearest = [(fmt, "nearest", "nearest", change) for fmt in ("fp32", *FORMATS)]
    remedies = [(fmt, name, name, change) for fmt in mended for name in REMEDIES]
    others = [(fmt, M_PLUS_ADAM, "nearest", _finite(first_m_plus_adam_step(w, grad))) for fmt in mended]
    for fmt, name, write_back, part in nearest + remedies + others:
        kept, gap = keep(w, part, fmt, write_back, bits=bits, largest=largest)
        counts[f"size/{fmt}/{name}"] = _sizes(part, kept, layer=layer, layers=layers)
        if name == "nearest" and fmt in FORMATS:
            counts |= _counted(fmt, place, part, kept=kept, gap=gap, layer=layer, layers=layers)
    return counts


def _finite(step: Tensor) -> Tensor:
    """Zero, which is no step, for one that is not finite: a weight that it reaches is no number that survives."""
    return torch.where(torch.isfinite(step), step, 0.0)


def _counted(
    name: str, place: Tensor, change: Tensor, *, kept: Tensor, gap: Tensor, layer: Tensor, layers: int
) -> dict[str, Tensor]:
    fates = 3 * place + fate(change, kept, kept.new_zeros(()))
    ratio = torch.log2(change.abs() / gap).floor().nan_to_num(LOWEST).clamp(LOWEST, HIGHEST).to(torch.int64) - LOWEST
    gaps = torch.where(change == 0, len(SPACINGS), ratio) + layer * (len(SPACINGS) + 1)
    return {
        f"fate/{name}": torch.bincount(fates.flatten(), minlength=layers * len(BINS) * 3).view(layers, -1),
        f"gap/{name}": torch.bincount(gaps.flatten(), minlength=layers * (len(SPACINGS) + 1)).view(layers, -1)[:, :-1],
    }


def _sizes(change: Tensor, kept: Tensor, *, layer: Tensor, layers: int) -> Tensor:
    due = change != 0
    columns = (due, due & (kept == 0), change.abs(), change.sign() * kept)
    each = torch.stack([column.double().nan_to_num(0.0, 0.0, 0.0).sum(1) for column in columns], 1)
    return each.new_zeros(layers, len(columns)).index_add_(0, layer.flatten(), each)


def _record(samples: list[Sampled], counts: Mapping[str, Tensor]) -> dict[str, Any]:
    views = (STORED, *FORMATS)
    fates = {view: counts[f"fate/{view}"].view(len(samples), len(BINS), 3) for view in views}
    intended = fates[STORED][:, :, 1:].sum(2)
    held = intended.sum(0).nonzero().flatten()
    lost = {view: each[:, :, 1] for view, each in fates.items()}
    return {
        "intended": _round(intended.sum()),
        "lost": {view: _round(each.sum()) for view, each in lost.items()},
        "layers": {
            sample.name: {
                "stored": sample.stored,
                "weights": sample.weights,
                "sampled": sample.tiles.size,
                "intended": _round(intended[n].sum()),
                "lost": {view: _round(each[n].sum()) for view, each in lost.items()},
            }
            for n, sample in enumerate(samples)
        },
        "magnitude": {
            "bins": [BINS[n] for n in held.tolist()],
            "intended": _rounded(intended.sum(0)[held]),
            "lost": {view: _rounded(each.sum(0)[held]) for view, each in lost.items()},
        },
        "spacing": {"bins": list(SPACINGS), **{view: _rounded(counts[f"gap/{view}"].sum(0)) for view in views}},
        "trials": {
            name.removeprefix("size/"): dict(
                zip(("intended", "lost", "size", "arrived"), each.sum(0).tolist(), strict=True)
            )
            for name, each in counts.items()
            if name.startswith("size/")
        },
        "moments": _moments(samples),
    }


def _moments(samples: Iterable[Sampled]) -> dict[str, dict[str, float]]:
    totals: dict[str, Tensor] = {}
    for sample in samples:
        for state, entries in sample.moments.items():  # entries of the padding are neither due nor stale
            totals[state] = totals.get(state, 0) + entries[1:].double().cpu() * sample.tiles.weight
    return {state: dict(zip(("due", "stale"), _rounded(each), strict=True)) for state, each in totals.items()}


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 1) for value in values.tolist()]


def _round(value: Tensor) -> float:
    return round(value.item(), 1)


# --- the same step in other formats and write-backs: what a store of that kind would keep of it -----------------------


def keep(w: Tensor, step: Tensor, fmt: str, write_back: str, *, bits: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """What a step changes in the stored weight, with the carry if there is one, and the spacing of the format there.

    w, step: float32 [rows, width], rows of samples of one or several tensors.  bits: int32 of that shape.
    largest: float32 [rows, 1], the largest magnitude in the tensor that a row was taken from.
    """
    plan = StorePlan(get_format(fmt), write_back=write_back)
    if not plan.format.whole:
        return _kept(plan, w, step, bits)
    # A scale of the whole tensor: rows are measured by it, and a row that holds it is put in front of them.
    unit = torch.where(largest > 0, largest, 1.0)
    first = torch.zeros_like(w[:1])
    first[0, 0] = 1.0
    w, step = torch.cat([first, w / unit]), torch.cat([torch.zeros_like(first), step / unit])
    moved, gap = _kept(plan, w, step, torch.cat([torch.zeros_like(bits[:1]), bits]))
    return moved[1:] * unit, gap[1:] * unit


def _kept(plan: StorePlan, w: Tensor, step: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    drawn = bits if plan.needs_bits else None
    before = plan.initial(w)
    base = plan.read(before, w.shape)
    after = plan.write(before, base, step, drawn).tensors
    if plan.has_carry:
        held = [plan.read(tensors, w.shape) + tensors["carry"].to(torch.float32) for tensors in (before, after)]
        moved = held[1] - held[0]
    else:
        write = plan.part_writer(before, after, base, drawn)
        moved = write(step) - write(torch.zeros_like(step))
    return torch.where(step == 0, 0.0, moved), plan.spacing(after, base)


def first_m_plus_adam_step(w: Tensor, grad: Tensor) -> Tensor:
    """The first step, float32 [*shape], of M+Adam at its default rates from these weights and this gradient."""
    p = nn.Parameter(w.clone())
    p.grad = grad
    step = MPlusAdam([p], weight_format="fp32", state_dtype="fp32").preview(p).update.step.delta
    return torch.where(w + step == w, 0.0, step)
