"""How fair a comparison is: whether best rates are bracketed, whether tuning was equal, what the sweeps alone say. And
how wide the region of good learning rates is, from the trials of the tuning (the paper's Figure 6).

Equal tuning: in a comparison, every optimizer was tuned where it runs, or all took their rates from elsewhere in the
same way (from another regime, another model, another optimizer). Otherwise the tuned side is favoured: rates are best
where they were found.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpadam.analysis.cells import CellKey
from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.texts import number_text
from mpadam.analysis.tunings import Tuning
from mpadam.claims.cells import Slot, Weighted
from mpadam.claims.data import Rates
from mpadam.claims.samples import ClaimCell, Sweep
from mpadam.study.config import StudyConfig
from mpadam.study.grid import TuningKey, selection_key
from mpadam.study.tuning import trial_loss

Tunings = Mapping[TuningKey, Tuning]


def with_rates(sample: ClaimCell, slot: Slot, collected: Collected) -> ClaimCell:
    """The sample with edges, flags and sweep of the optimizers in its cell, and with what is unfair in their tuning."""
    tunings = {tuning.key: tuning for tuning in collected.tunings}
    unfair = _unfair(slot.terms, collected.config) or _unfair(slot.premise, collected.config)
    return replace(
        sample,
        edges=_edges(slot.keys, collected.config, tunings),
        flags=(*sample.flags, *_unequal(slot.terms, collected.config, tunings)),
        sweep=_sweep(slot.terms, tunings),
        untestable=(*sample.untestable, *unfair),
    )


def _source(config: StudyConfig, key: CellKey) -> TuningKey:
    return selection_key(config, TuningKey(key.model, key.regime, key.optimizer))


def _unfair(terms: Weighted, config: StudyConfig) -> list[str]:
    """Which optimizers of a comparison took their rates from elsewhere, where not all did so in the same way."""
    ways = {source.cell: _borrowing(config, source.cell) for source, _ in terms}
    if len(set(ways.values())) < 2:
        return []
    told: dict[tuple[str, str], list[str]] = {}
    for key in (key for key, way in ways.items() if way):
        whose = f"the rates of {other}" if (other := _other(config, key)) else "rates that were given"
        told.setdefault((key.regime, whose), []).append(key.optimizer)
    return [
        f"{' and '.join(entries)} in {regime} {'use' if len(entries) > 1 else 'uses'} {whose}"
        for (regime, whose), entries in told.items()
    ]


def _borrowing(config: StudyConfig, key: CellKey) -> frozenset[str]:
    """On which axes an optimizer's rates are another's, and whether they were given instead of searched."""
    source = _source(config, key)
    given = frozenset() if config.searched(source.optimizer) else frozenset({"given"})
    return given | {axis for axis in ("model", "regime", "optimizer") if getattr(source, axis) != getattr(key, axis)}


def _edges(keys: tuple[CellKey, ...], config: StudyConfig, tunings: Tunings) -> tuple[str, ...]:
    """Best rates without a worse neighbour on both sides, also where they are taken from another tuning."""
    found = []
    for key in keys:
        source = _source(config, key)
        fixed = config.optimizers[key.optimizer].values
        edges = [name for name, inside in tunings[source].bracketed.items() if not inside and name not in fixed]
        owner = source.optimizer if source.regime == key.regime else f"{source.optimizer} in {source.regime}"
        found += [f"{owner}: {name}" for name in edges]
    return tuple(dict.fromkeys(found))


def _unequal(terms: Weighted, config: StudyConfig, tunings: Tunings) -> tuple[str, ...]:
    keys = [source.cell for source, _ in terms]
    told = [line for key in keys if (line := _borrowed(config, key))]
    sources = {key: tunings[_source(config, key)] for key in keys}
    trials = {f"{key.optimizer} {tuning.listed}" for key, tuning in sources.items()}
    if len({tuning.listed for tuning in sources.values()}) > 1:
        told.append(f"trials: {', '.join(sorted(trials))}")
    ranges = {key.optimizer: _ranges(tuning) for key, tuning in sources.items() if tuning.trials}
    if len({text for text, _ in ranges.values()}) > 1 and len({octaves for _, octaves in ranges.values()}) > 1:
        told.append(f"ranges: {'; '.join(f'{entry} {text}' for entry, (text, _) in ranges.items())}")
    if config.tuning.steps_fraction < 1 and any(tuning.trials for tuning in sources.values()):
        told.append(f"trials of {config.tuning.steps_fraction:.0%} of a run")
    return tuple(dict.fromkeys(told))


def _borrowed(config: StudyConfig, key: CellKey) -> str:
    if other := _other(config, key):
        return f"{key.optimizer}: rates of {other}"
    return "" if config.searched(key.optimizer) else f"{key.optimizer}: rates given"


def _other(config: StudyConfig, key: CellKey) -> str:
    """Where the rates come from, as far as it is elsewhere."""
    source = _source(config, key)
    axes = [(getattr(source, axis), getattr(key, axis)) for axis in ("model", "regime", "optimizer")]
    return ", ".join(taken for taken, asked in axes if taken != asked)


def _ranges(tuning: Tuning) -> tuple[str, float]:
    """`lr 1e-3 to 0.01 (3)`, and how many octaves the first rate spans."""
    tried = {name: sorted({trial["values"][name] for trial in tuning.trials}) for name in tuning.selected}
    texts = [f"{name} {number_text(v[0])} to {number_text(v[-1])} ({len(v)})" for name, v in tried.items()]
    spans = [round(math.log2(v[-1] / v[0]), 3) for v in tried.values() if v[0] > 0]
    return ", ".join(texts), max(spans, default=0.0)


def _sweep(terms: Weighted, tunings: Tunings) -> Sweep | None:
    """The contrast of ln(perplexity) over trials, where every term has trials of its own."""
    found = [(tunings.get(TuningKey(s.cell.model, s.cell.regime, s.cell.optimizer)), weight) for s, weight in terms]
    sweeps = [(tuning.sweep, weight) for tuning, weight in found if tuning is not None and tuning.sweep is not None]
    if len(sweeps) < len(found):
        return None
    best, median = (
        math.fsum(weight * math.log(getattr(sweep, name)) for sweep, weight in sweeps)
        if all(math.isfinite(getattr(sweep, name)) for sweep, _ in sweeps)
        else None
        for name in ("best", "median")
    )
    return Sweep(best, median)


# --- how wide the region of good rates is -----------------------------------------------------------------------------


def width_samples(metric: Rates, collected: Collected) -> list[ClaimCell]:
    """A cell a (model, regime) in which both were tuned: octaves of one less octaves of the other, for the one seed."""
    tunings = {tuning.key: tuning for tuning in collected.tunings if tuning.status == "selected"}
    labels = optimizer_styles([metric.better, metric.than])
    name = f"{labels[metric.better].label} less {labels[metric.than].label}"
    seed = collected.config.tuning.seed
    found = []
    for model, regime in dict.fromkeys((key.model, key.regime) for key in tunings):
        pair = [tunings.get(TuningKey(model, regime, entry)) for entry in (metric.better, metric.than)]
        octaves = [width(tuning, metric.tolerance) for tuning in pair if tuning is not None]
        if len(octaves) == 2:
            ends = [entry for entry, (_, cut) in zip((metric.better, metric.than), octaves, strict=True) if cut]
            told = tuple(f"the region of {entry} reaches the end of the trials" for entry in ends)
            values = {seed: octaves[0][0] - octaves[1][0]}
            found.append(ClaimCell(name, f"{model} {regime}", values, (seed,), model, regime=regime, flags=told))
    return found


def width(tuning: Tuning, tolerance: float) -> tuple[float, bool]:
    """Octaves of lr around the best trial whose loss stays within `tolerance` of it, the other rates at their best, and
    whether the region reaches an end of what was tried."""
    assert tuning.best is not None
    best = tuning.trials[tuning.best]
    others = {name: value for name, value in best["values"].items() if name != "lr"}
    alike = [t for t in tuning.trials if {n: v for n, v in t["values"].items() if n != "lr"} == others]
    ladder = sorted((t["values"]["lr"], trial_loss(t)) for t in alike if "lr" in t["values"])
    if not ladder:
        return 0.0, True
    good = [loss <= trial_loss(best) + tolerance for _, loss in ladder]
    middle = next(index for index, (rate, _) in enumerate(ladder) if rate == best["values"]["lr"])
    low, high = _reach(good, middle, -1), _reach(good, middle, 1)
    return math.log2(ladder[high][0] / ladder[low][0]), low == 0 or high == len(ladder) - 1


def _reach(good: Sequence[bool], start: int, step: int) -> int:
    """The last index in that direction up to which all are good."""
    while 0 <= start + step < len(good) and good[start + step]:
        start += step
    return start
