"""Which cells of a study a claim is tried on: those for which the grid asks for every run of its contrast.

So a claim follows the study: every model, budget and regime that it has, whatever its size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpadam.analysis.cells import CellKey
from mpadam.analysis.collect import Collected
from mpadam.claims.data import Contrast, Perplexity, Probe, Term, Trend, Where, family
from mpadam.numerics.formats import card_of
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

    contrast: its name.  terms: cells of runs with their weights.  seeds: that the grid asks for in all of them.
    needs: name of the premise, empty where there is none.  premise: its terms, empty where the study lacks them.
    """

    contrast: str
    model: str
    budget: int
    regime: str
    terms: Weighted
    needs: str
    premise: Weighted
    seeds: tuple[int, ...]

    @property
    def where(self) -> str:
        return f"{self.model} {self.budget}x {self.regime}"

    @property
    def keys(self) -> tuple[CellKey, ...]:
        return tuple(dict.fromkeys(source.cell for source in self.sources))

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(dict.fromkeys(source for source, _ in (*self.terms, *self.premise)))


Grid = Mapping[CellKey, frozenset[int]]
Place = tuple[str, int, str]  # model, budget, regime


def grid_of(collected: Collected) -> Grid:
    seeds: dict[CellKey, set[int]] = {}
    columns = ["model", "budget", "regime", "optimizer", "seed"]
    for model, budget, regime, optimizer, seed in collected.runs[columns].itertuples(index=False):
        seeds.setdefault(CellKey(model, int(budget), regime, optimizer), set()).add(int(seed))
    return {key: frozenset(found) for key, found in seeds.items()}


def slots(metric: Perplexity | Probe | Trend, config: StudyConfig, grid: Grid) -> list[Slot]:
    if isinstance(metric, Trend):
        return list(_trends(metric, config, grid))
    places = dict.fromkeys(key.place for key in grid)
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
        (where.masters is None or any(fields.masters in family(name) for name in where.masters))
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
    terms = _located(contrast.terms, config, grid, place)
    if not terms:
        return None
    needs = contrast.premise
    premise = _located(needs.terms, config, grid, place) if needs else ()
    return Slot(contrast.name, *place, terms, needs.name if needs else "", premise, _seeds(grid, (*terms, *premise)))


def _seeds(grid: Grid, terms: Weighted) -> tuple[int, ...]:
    return tuple(sorted(frozenset.intersection(*(grid[source.cell] for source, _ in terms))))


def _located(terms: tuple[Term, ...], config: StudyConfig, grid: Grid, place: Place) -> Weighted:
    """All of the terms in the study, or none."""
    model, budget, regime = place
    found = [(related_regime(config, regime, term.regime), term) for term in terms]
    located = [
        (Source(CellKey(model, budget, name, term.optimizer), term.branch), term.weight) for name, term in found if name
    ]
    whole = len(located) == len(terms) and all(source.cell in grid for source, _ in located)
    return tuple(located) if whole else ()


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
    card = card_of(regime.masters)
    fields |= {key: getattr(regime, key) for key in card.options}
    if card.codes:
        fields |= {"shadow": regime.shadow}
    if regime.compute == "fp8":
        fields |= {"amax_history": regime.amax_history, "margin": regime.margin, "fp8_eval": regime.fp8_eval}
    return fields


def _trends(metric: Trend, config: StudyConfig, grid: Grid) -> Iterator[Slot]:
    """A slot for each (model, budget, compute): the slope over the formats that the study has there, by their level."""
    for model, budget, compute in dict.fromkeys((k.model, k.budget, config.regimes[k.regime].compute) for k in grid):
        levels = [_level(metric, name, config, grid, (model, budget, compute)) for name in metric.masters]
        levels = [level for level in levels if level]
        if len(levels) > 1:
            slopes = _slope_weights(levels)
            terms, premise = (
                tuple(
                    (Source(CellKey(model, budget, regime, entry)), sign * weight)
                    for regime, weight in reversed(slopes.items())
                    for entry, sign in entries
                    if weight
                )
                for entries in (((metric.than, 1.0), (metric.better, -1.0)), ((metric.than, 1.0),))
            )
            name = " < ".join(", ".join(config.regimes[regime].masters for regime in level) for level in levels)
            needs = "how much more precision costs AdamW with every step"
            yield Slot(name, model, budget, f"*-{compute}", terms, needs, premise, _seeds(grid, terms))


def _level(metric: Trend, name: str, config: StudyConfig, grid: Grid, place: Place) -> list[str]:
    """The regimes with masters of this family, without a shadow, in which the study has both optimizers."""
    model, budget, compute = place
    return [
        regime
        for masters in family(name)
        for regime, fields in config.regimes.items()
        if (fields.masters, fields.compute, fields.shadow) == (masters, compute, "none")
        and all(CellKey(model, budget, regime, entry) in grid for entry in (metric.than, metric.better))
    ]


def _slope_weights(levels: list[list[str]]) -> dict[str, float]:
    """Regime -> weight in the least-squares slope over ranks 0, 1, 2, ... of its level: they sum to 0, and to 1 when
    multiplied by rank."""
    ranks = {regime: rank for rank, level in enumerate(levels) for regime in level}
    middle = sum(ranks.values()) / len(ranks)
    total = sum((rank - middle) ** 2 for rank in ranks.values())
    return {regime: (rank - middle) / total for regime, rank in ranks.items()}
