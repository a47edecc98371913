"""What optimizers gain over AdamW, and what AdamW loses by coarser weights: differences of ln(perplexity) of each place
(model, budget, regime), paired by seed, without a verdict. The top of the page and its chart are made of them.

Alternatives and forms are chosen by their results, so the family of each is all of its kind in all places with coarse
weights (or with fp32 ones): the wide interval holds for every one that could have been chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mpadam.analysis.cells import BASELINE, CellKey
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD, base_of, is_level
from mpadam.analysis.style import regime_styles
from mpadam.claims.cells import Grid, Place, Slot, Source, grid_of, related_regime
from mpadam.claims.rates import with_rates
from mpadam.claims.reported import learned_nothing
from mpadam.claims.samples import ClaimCell, Numbers, perplexities, sample
from mpadam.claims.statistics import spread
from mpadam.claims.verdicts import LEAST_SEEDS

#: kinds of what is compared; the additive twin, a control, and levels of M+Adam's ablations are none of them
ITSELF, ALTERNATIVE, FORM = "M+Adam", "alternative", "form"
_LEVEL = 0.05


@dataclass(frozen=True)
class Effect:
    """The gain of an optimizer over AdamW in one place.

    gain: with its spread and intervals, where two seeds are in and no run diverged. candidates: of its kind in this
    place, of which it has the largest mean gain. over: M+Adam's gain over it, the same way; None for M+Adam.
    """

    kind: str
    entry: str
    gain: ClaimCell
    candidates: int
    over: ClaimCell | None = None


@dataclass(frozen=True)
class Effects:
    collected: Collected

    @cached_property
    def costs(self) -> list[ClaimCell]:
        """By how much AdamW's ln(perplexity) is higher than with fp32 weights at the same compute, the rest equal."""
        pairs = []
        for model, budget, regime in self.places:
            other = related_regime(self.collected.config, regime, {"masters": "fp32"})
            ends = (CellKey(model, budget, regime, BASELINE), CellKey(model, budget, other or "", BASELINE))
            pairs += [ends] if all(end in self._grid for end in ends) else []
        return [self._compared(low, fp32, 1) for low, fp32 in pairs]

    @cached_property
    def gains(self) -> list[Effect]:
        """M+Adam, and in each place the alternative and the other form of M+Adam with the largest mean gain."""
        found = []
        for place in self.places:
            for kind in (ITSELF, ALTERNATIVE, FORM):
                if (best := self._best(kind, place)) is not None:
                    found.append(best)
        return found

    @cached_property
    def shown(self) -> tuple[str, int] | None:
        """The model and budget of the chart: where most regimes have a gain, then the larger one; None without any."""
        regimes: dict[tuple[str, int], set[str]] = {}
        for effect in self.gains:
            regimes.setdefault((effect.gain.model, effect.gain.budget or 0), set()).add(effect.gain.regime)
        models = self.collected.config.models
        return max(regimes, key=lambda at: (len(regimes[at]), models[at[0]].parameters(0), at[1]), default=None)

    @cached_property
    def places(self) -> list[Place]:
        """Those with AdamW and without a shadow, which is a hidden copy of the weights."""
        regimes = self.collected.config.regimes
        found = [k.place for k in self._grid if k.optimizer == BASELINE]
        found = [place for place in dict.fromkeys(found) if regimes[place[2]].shadow == "none"]
        scales, order = list(dict.fromkeys(place[:2] for place in found)), list(regime_styles(p[2] for p in found))
        return sorted(found, key=lambda place: (scales.index(place[:2]), order.index(place[2])))

    def _best(self, kind: str, place: Place) -> Effect | None:
        entries = self._candidates(kind, place)
        alike = (other for other in self.places if self._has_masters(other[2]) == self._has_masters(place[2]))
        family = sum(len(self._candidates(kind, other)) for other in alike)
        baseline, method = CellKey(*place, BASELINE), CellKey(*place, METHOD)
        gains = {entry: self._compared(baseline, CellKey(*place, entry), family) for entry in entries}
        known = [entry for entry, gain in gains.items() if gain.mean is not None and not gain.diverged] or entries[:1]
        if not known:
            return None
        best = max(known, key=lambda entry: gains[entry].mean or 0.0)
        against = kind != ITSELF and method in self._grid
        over = self._compared(CellKey(*place, best), method, family) if against else None
        return Effect(kind, best, gains[best], len(entries), over)

    def _candidates(self, kind: str, place: Place) -> list[str]:
        found = [k.optimizer for k in self._grid if k.place == place]
        return [entry for entry in found if self._kind(entry, place[2]) == kind]

    def _kind(self, entry: str, regime: str) -> str:
        """ "" for what is not compared. With fp32 weights there is nothing to be an alternative to."""
        rule = self.collected.config.optimizer_name(entry).rule
        if rule == METHOD:
            return ITSELF if entry == METHOD else "" if is_level(entry) and base_of(entry) == METHOD else FORM
        return "" if rule == "additive-twin" or entry == BASELINE or self._has_masters(regime) else ALTERNATIVE

    def _has_masters(self, regime: str) -> bool:
        return self.collected.config.regimes[regime].masters == "fp32"

    def _compared(self, than: CellKey, better: CellKey, family: int) -> ClaimCell:
        terms = ((Source(than), 1.0), (Source(better), -1.0))
        seeds = tuple(sorted(self._grid[than] & self._grid[better]))
        slot = Slot(f"{better.optimizer} over {than.optimizer}", *than.place, terms, "", (), seeds)
        found = sample(slot, self._numbers, learned_nothing(self.collected) or 0.0)
        found = with_rates(replace(found, family_size=family), slot, self.collected)
        if found.n < 2 or found.diverged:
            return found
        measured = spread(list(found.values.values()))
        return replace(found, spread=measured, family_interval=measured.interval(1 - _LEVEL / family))

    @cached_property
    def _grid(self) -> Grid:
        return grid_of(self.collected)

    @cached_property
    def _numbers(self) -> Numbers:
        return perplexities(self.collected)


def sides(found: Sequence[ClaimCell]) -> dict[str, list[ClaimCell]]:
    """Those that are shown to be above 0 by the interval for all of them together ("better"), below ("worse"), and the
    rest ("open"): a run diverged, seeds are missing or fewer than three, rates were not found alike, or 0 is inside."""
    told: dict[str, list[ClaimCell]] = {"better": [], "worse": [], "open": []}
    for cell in found:
        told[_side(cell)].append(cell)
    return told


def _side(cell: ClaimCell) -> str:
    interval = cell.family_interval
    if interval is None or cell.n < LEAST_SEEDS or cell.missing or cell.untestable or cell.edges:
        return "open"
    return "better" if interval[0] > 0 else "worse" if interval[1] < 0 else "open"
