"""Which cells of a study a claim is tried on: those for which the grid asks for every run of its contrast.

So a claim follows the study: every model, budget and regime that it has, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpadam.analysis.cells import CellKey
from mpadam.analysis.claims.data import Contrast, Perplexity, Probe, Term, Trend, Where
from mpadam.analysis.collect import Collected
from mpadam.study.config import RegimeConfig, StudyConfig


@dataclass(frozen=True)
class Source:
    """Where a number of a contrast comes from: a cell of runs, and for some quantities a branch of the update."""

    cell: CellKey
    branch: str | None = None


Weighted = tuple[tuple[Source, float], ...]


@dataclass(frozen=True)
class Slot:
    """A cell of a claim before anything is known of its runs.

    contrast: its name.  terms: cells of runs with their weights.
    premise: as `terms`, empty where there is none.  seeds: that the grid asks for in all of them.
    """

    contrast: str
    model: str
    budget: int
    regime: str
    terms: Weighted
    premise: Weighted
    seeds: tuple[int, ...]

    @property
    def where(self) -> str:
        return f"{self.model} {self.budget}x {self.regime}"

    @property
    def keys(self) -> tuple[CellKey, ...]:
        """Every cell of runs that it needs, once."""
        return tuple(dict.fromkeys(source.cell for source in self.sources))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every number that it needs, once."""
        return tuple(dict.fromkeys(source for source, _ in (*self.terms, *self.premise)))


Grid = Mapping[CellKey, frozenset[int]]
Place = tuple[str, int, str]  # model, budget, regime


def grid_of(collected: Collected) -> Grid:
    """Cells that the study asks for, and their seeds."""
    seeds: dict[CellKey, set[int]] = {}
    columns = ["model", "budget", "regime", "optimizer", "seed"]
    for model, budget, regime, optimizer, seed in collected.runs[columns].itertuples(index=False):
        seeds.setdefault(CellKey(model, int(budget), regime, optimizer), set()).add(int(seed))
    return {key: frozenset(found) for key, found in seeds.items()}


def slots(metric: Perplexity | Probe | Trend, config: StudyConfig, grid: Grid) -> list[Slot]:
    """The cells of a claim in the order of the grid, one contrast after another."""
    if isinstance(metric, Trend):
        return list(_trends(metric, config, grid))
    places = dict.fromkeys((key.model, key.budget, key.regime) for key in grid)
    chosen = [place for place in places if _selected(metric.where, config, grid, place)]
    return [
        slot
        for contrast in metric.contrasts
        for place in chosen
        if (slot := _slot(contrast, config, grid, place)) is not None
    ]


def _selected(where: Where, config: StudyConfig, grid: Grid, place: Place) -> bool:
    model, budget, regime = place
    fields = config.regimes[regime]
    return (
        (where.masters is None or fields.masters in where.masters)
        and (where.compute is None or fields.compute in where.compute)
        and fields.shadow in where.shadow
        and model in _models(where, config, grid)
        and budget in _budgets(where, grid)
    )


def _models(where: Where, config: StudyConfig, grid: Grid) -> list[str]:
    used = list(dict.fromkeys(key.model for key in grid))
    if where.models is None:
        return used
    if where.models == "largest":
        return [max(used, key=lambda name: config.models[name].parameters(0))] if len(used) > 1 else []
    return [model for model in used if model in where.models]


def _budgets(where: Where, grid: Grid) -> list[int]:
    used = sorted({key.budget for key in grid})
    if where.budgets is None:
        return used
    if where.budgets == "largest":
        return used[-1:] if len(used) > 1 else []
    return [budget for budget in used if budget in where.budgets]


def _slot(contrast: Contrast, config: StudyConfig, grid: Grid, place: Place) -> Slot | None:
    """None where the study does not ask for one of the terms, or has no regime like that."""
    terms = _located(contrast.terms, config, place)
    premise = _located(contrast.premise, config, place)
    keys = [source.cell for source, _ in (*terms, *premise)]
    if len(keys) < len(contrast.terms) + len(contrast.premise) or any(key not in grid for key in keys):
        return None
    seeds = frozenset.intersection(*(grid[key] for key in keys))
    return Slot(contrast.name, *place, terms, premise, tuple(sorted(seeds)))


def _located(terms: tuple[Term, ...], config: StudyConfig, place: Place) -> Weighted:
    model, budget, regime = place
    found = [(related_regime(config, regime, term.regime), term) for term in terms]
    return tuple(
        (Source(CellKey(model, budget, name, term.optimizer), term.branch), term.weight) for name, term in found if name
    )


def related_regime(config: StudyConfig, regime: str, changes: Mapping[Any, str]) -> str | None:
    """The regime of the study that is as this one but for `changes`; None where it has none, or nothing would change.

    Fields that mean nothing under the masters and compute of a regime (its block size, with fp32 masters) do not count.
    """
    if not changes:
        return regime
    own = config.regimes[regime]
    wanted = _meaning(own.model_copy(update=dict(changes)))
    if wanted == _meaning(own):
        return None
    return next((name for name, other in config.regimes.items() if _meaning(other) == wanted), None)


def _meaning(regime: RegimeConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {"masters": regime.masters, "compute": regime.compute}
    if regime.masters.startswith("fp8"):
        fields |= {"block_size": regime.block_size, "power_of_two_scale": regime.power_of_two_scale}
    if regime.masters not in ("fp32", "bf16"):
        fields |= {"shadow": regime.shadow}
    if regime.compute == "fp8":
        fields |= {"amax_history": regime.amax_history, "margin": regime.margin, "fp8_eval": regime.fp8_eval}
    return fields


def _trends(metric: Trend, config: StudyConfig, grid: Grid) -> Iterator[Slot]:
    """A slot a (model, budget, compute): slope over the levels of masters that the study has there, by their rank."""
    for model, budget, compute in dict.fromkeys((k.model, k.budget, config.regimes[k.regime].compute) for k in grid):
        regimes = (_level(config, masters, compute) for masters in metric.masters)
        pairs = {
            regime: [CellKey(model, budget, regime, entry) for entry in (metric.than, metric.better)]
            for regime in regimes
            if regime is not None
        }
        levels = [regime for regime, pair in pairs.items() if all(key in grid for key in pair)]
        if len(levels) > 1:
            terms = tuple(
                (Source(key), sign * weight)
                for regime, weight in reversed([*zip(levels, _slope_weights(len(levels)), strict=True)])
                for key, sign in zip(pairs[regime], (1.0, -1.0), strict=True)
                if weight
            )
            seeds = frozenset.intersection(*(grid[source.cell] for source, _ in terms))
            name = " < ".join(config.regimes[regime].masters for regime in levels)
            yield Slot(name, model, budget, f"*-{compute}", terms, (), tuple(sorted(seeds)))


def _level(config: StudyConfig, masters: str, compute: str) -> str | None:
    """The regime with these masters and this compute, without a shadow."""
    wanted = (masters, compute, "none")
    return next((name for name, r in config.regimes.items() if (r.masters, r.compute, r.shadow) == wanted), None)


def _slope_weights(levels: int) -> list[float]:
    """Weights of the least-squares slope over ranks 0, 1, 2, ...: they sum to 0, and to 1 when multiplied by rank."""
    ranks = [rank - (levels - 1) / 2 for rank in range(levels)]
    total = sum(rank**2 for rank in ranks)
    return [rank / total if total else 0.0 for rank in ranks]
