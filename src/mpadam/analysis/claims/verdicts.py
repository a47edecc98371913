"""From numbers to verdicts.

A claim says on which side of a threshold a number lies, the least difference that would matter. One two-sided test
of each cell answers both ways: *supported* where the number is shown to lie on the claimed side, *contradicted* where
it is shown to lie on the other, *inconclusive* where the interval has the threshold inside. So "no gain to speak of" is
an answer too, and absence of evidence is none.

No verdict without the right to one: *not run*, *not bracketed* (a best rate at the end of its range), fewer than three
seeds, seeds still missing. Holm's correction counts all cells of a family, those without a test too, so that what is
missing sharpens nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpadam.analysis.claims.data import Claim
from mpadam.analysis.claims.samples import Sample
from mpadam.analysis.claims.statistics import MOST_SEEDS, Share, Spread, holm, pool, seeds_needed, spread

SUPPORTED, CONTRADICTED, INCONCLUSIVE = "supported", "contradicted", "inconclusive"
NOT_BRACKETED, NOT_RUN = "not bracketed", "not run"
VERDICTS = (SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_BRACKETED, NOT_RUN)
LEAST_SEEDS = 3
_BEYOND = f"more than {MOST_SEEDS} seeds would be needed"


@dataclass(frozen=True)
class CellVerdict:
    """A cell and what is said of it.

    spread: of the seeds that are in, None below two. interval: 95%, of this cell alone; family_interval: such that all
    cells of the family hold together. p: two-sided, of the threshold; p_holm: adjusted. None where nothing is tested.
    seeds_needed: that would decide, should the truth be what was seen; None where it is not known or not needed.
    """

    sample: Sample
    verdict: str
    reason: str = ""
    spread: Spread | None = None
    interval: tuple[float, float] | None = None
    family_interval: tuple[float, float] | None = None
    family_size: int = 1
    p: float | None = None
    p_holm: float | None = None
    seeds_needed: int | None = None

    @property
    def n(self) -> int:
        return len(self.sample.values)

    @property
    def mean(self) -> float | None:
        """Of the seeds that are in; None where there are none."""
        values = list(self.sample.values.values())
        return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, why, and its cells."""

    claim: Claim
    verdict: str
    reason: str
    cells: tuple[CellVerdict, ...]

    @property
    def seeds_needed(self) -> int | None:
        """Seeds that would decide every cell that seeds can decide."""
        return max((cell.seeds_needed for cell in self.cells if cell.seeds_needed), default=None)


def judge(claim: Claim, samples: Sequence[Sample], *, alpha: float, pooled: bool = False) -> Judged:
    """The verdict of a claim on the cells that a study has.

    pooled: one variance for the cells of a family (own for those with a diverged run, whose spread is made up).
    """
    cells: list[CellVerdict] = []
    families = {sample.contrast if claim.family == "contrast" else "" for sample in samples}
    for family in sorted(families):
        members = [s for s in samples if claim.family == "claim" or s.contrast == family]
        cells += _judge_family(claim, members, alpha, pooled)
    order = {id(sample): index for index, sample in enumerate(samples)}
    cells.sort(key=lambda cell: order[id(cell.sample)])
    verdict = _combined(claim.holds, [cell.verdict for cell in cells])
    return Judged(claim, verdict, _why(cells, verdict), tuple(cells))


# --- one family of cells ---------------------------------------------------------------------------------------------


def _judge_family(claim: Claim, samples: Sequence[Sample], alpha: float, pooled: bool) -> list[CellVerdict]:
    cells = [_describe(sample, alpha, len(samples)) for sample in samples]
    if pooled:
        cells = _with_pooled_spread(cells, alpha)
    tests = [_test(claim, cell) if _may_test(cell) else None for cell in cells]
    adjusted = holm([test.p if test else 1.0 for test in tests])
    return [
        _exact(claim, cell) if test is None else _decided(claim, replace(cell, p=test.p, p_holm=p), test, alpha)
        for cell, test, p in zip(cells, tests, adjusted, strict=True)
    ]


def _describe(sample: Sample, alpha: float, size: int) -> CellVerdict:
    """Spread and intervals of what is in, and the reason why there can be no verdict, if there is one."""
    verdict, reason = _obstacle(sample)
    cell = CellVerdict(sample, verdict, reason, family_size=size)
    if len(sample.values) < 2:
        return cell
    return _with_spread(cell, spread(list(sample.values.values())), alpha)


def _with_spread(cell: CellVerdict, found: Spread, alpha: float) -> CellVerdict:
    counted = cell.sample.counted
    ruler = found if counted is None else Share(*counted)
    whole = ruler.interval(1 - alpha / cell.family_size)
    return replace(cell, spread=found, interval=ruler.interval(0.95), family_interval=whole)


def _obstacle(sample: Sample) -> tuple[str, str]:
    """Why a cell gets no verdict; ("", "") where it may."""
    n, asked = len(sample.values), len(sample.asked)
    if n == 0:
        return NOT_RUN, f"0 of {asked} seeds are in" if asked else "not measured"
    if sample.exact:
        return "", ""
    obstacles = (
        (NOT_BRACKETED, sample.edges, f"best rate at the end of its range: {', '.join(sample.edges)}"),
        (INCONCLUSIVE, n < LEAST_SEEDS, f"n = {n} < {LEAST_SEEDS} seeds"),
        (INCONCLUSIVE, sample.missing, f"{n} of {asked} seeds are in; no verdict before all are"),
        (INCONCLUSIVE, sample.tied, f"both sides diverged at seed {', '.join(map(str, sample.tied))}"),
    )
    return next(((verdict, reason) for verdict, found, reason in obstacles if found), ("", ""))


def _may_test(cell: CellVerdict) -> bool:
    return not cell.verdict and not cell.sample.exact


def _with_pooled_spread(cells: Sequence[CellVerdict], alpha: float) -> list[CellVerdict]:
    mine = [i for i, c in enumerate(cells) if c.spread is not None and _may_test(c) and not c.sample.diverged]
    spreads = dict(zip(mine, pool([s for i in mine if (s := cells[i].spread)]), strict=True))
    return [_with_spread(cell, spreads[i], alpha) if i in spreads else cell for i, cell in enumerate(cells)]


# --- the test --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Test:
    """Two-sided p-value of the threshold, and whether the number lies on the claimed side of it."""

    p: float
    claimed_side: bool
    blocked: str = ""


def _test(claim: Claim, cell: CellVerdict) -> _Test:
    assert cell.spread is not None
    if cell.sample.counted is not None:
        k, n = cell.sample.counted
        return _Test(Share(k, n).p(claim.threshold), (k / n > claim.threshold) == (claim.direction == "above"))
    if claim.direction in ("above", "below"):
        p_above = cell.spread.p_above(claim.threshold)
        test = _Test(_two_sided(p_above), (cell.spread.mean > claim.threshold) == (claim.direction == "above"))
    else:
        test = _equivalence(claim, cell.spread)
    return test if cell.sample.premise is None else _under_premise(test, cell.sample)


def _two_sided(p: float) -> float:
    return 2 * min(p, 1 - p)


def _equivalence(claim: Claim, found: Spread) -> _Test:
    """Two one-sided tests at both margins: inside if both say so, outside if one does."""
    low, high = found.p_above(-claim.threshold), 1 - found.p_above(claim.threshold)  # small: above -m, below m
    inside = abs(found.mean) < claim.threshold
    p = min(1.0, 2 * (max(low, high) if inside else min(1 - low, 1 - high)))
    return _Test(p, inside == (claim.direction == "within"))


def _under_premise(test: _Test, sample: Sample) -> _Test:
    """The premise has to be shown as well, so the larger p-value counts; where it fails, nothing is said."""
    assert sample.premise is not None
    found = spread(list(sample.premise.values()))
    if found.mean <= 0:
        return replace(test, p=1.0, blocked="its premise is not seen")
    p = _two_sided(found.p_above(0.0))
    return replace(test, p=max(test.p, p), blocked="its premise is not shown" if p > test.p else "")


def _decided(claim: Claim, cell: CellVerdict, test: _Test, alpha: float) -> CellVerdict:
    assert cell.p_holm is not None
    if cell.p_holm <= alpha:
        return replace(cell, verdict=SUPPORTED if test.claimed_side else CONTRADICTED)
    if test.blocked:
        return replace(cell, verdict=INCONCLUSIVE, reason=test.blocked)
    if cell.sample.diverged:
        return replace(cell, verdict=INCONCLUSIVE, reason="a run diverged")
    if cell.sample.counted is not None:
        return replace(cell, verdict=INCONCLUSIVE, reason=_too_few_looks(claim, cell, alpha))
    needed = _needed(claim, cell, alpha)
    text = f"about {needed} seeds would decide" if needed else _BEYOND
    return replace(cell, verdict=INCONCLUSIVE, reason=text, seeds_needed=needed)


def _too_few_looks(claim: Claim, cell: CellVerdict, alpha: float) -> str:
    assert cell.sample.counted is not None
    k, n = cell.sample.counted
    needed = Share(k, n).looks_needed(claim.threshold, alpha / cell.family_size)
    return f"{k} of {n} looks" + (f"; {needed} such looks would decide" if needed else "")


def _needed(claim: Claim, cell: CellVerdict, alpha: float) -> int | None:
    """More seeds than there are, in any case: with these the cell was not decided."""
    assert cell.spread is not None
    mean = cell.spread.mean if claim.direction in ("above", "below") else abs(cell.spread.mean)
    found = seeds_needed(mean - claim.threshold, cell.spread.sd, alpha / cell.family_size)
    return None if found is None else max(found, cell.n + 1)


def _exact(claim: Claim, cell: CellVerdict) -> CellVerdict:
    """A number without chance lies on one side or the other; a cell that has its verdict keeps it."""
    if cell.verdict or cell.mean is None:
        return cell
    value = abs(cell.mean) if claim.direction in ("within", "outside") else cell.mean
    holds = (value > claim.threshold) == (claim.direction in ("above", "outside"))
    return replace(cell, verdict=SUPPORTED if holds else CONTRADICTED, reason="; ".join(cell.sample.flags))


# --- the claim -------------------------------------------------------------------------------------------------------


def _combined(holds: str, verdicts: Sequence[str]) -> str:
    """In every cell: contradicted by one, supported by all. In any: the other way round."""
    decisive, unanimous = (CONTRADICTED, SUPPORTED) if holds == "every" else (SUPPORTED, CONTRADICTED)
    seen = set(verdicts)
    if seen <= {NOT_RUN}:
        return NOT_RUN
    if decisive in seen:
        return decisive
    if seen == {unanimous}:
        return unanimous
    rest = seen - {unanimous, NOT_RUN}
    return NOT_BRACKETED if rest == {NOT_BRACKETED} else INCONCLUSIVE


def _why(cells: Sequence[CellVerdict], verdict: str) -> str:
    """How many cells say what, which are not run, and for an open claim how many seeds would decide."""
    if not cells:
        return "the study has no such runs or measurements"
    counts = Counter(cell.verdict for cell in cells)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    text = f"{len(cells)} cell{'s' if len(cells) > 1 else ''}: {told}"
    missing = [f"{cell.sample.where} ({cell.sample.contrast})" for cell in cells if cell.verdict == NOT_RUN]
    if missing and len(missing) < len(cells):
        text += f"; not run: {', '.join(missing)}"
    if verdict != INCONCLUSIVE:
        return text
    if any(cell.reason == _BEYOND for cell in cells):
        return f"{text}; {_BEYOND} in some cell"
    needed = max((cell.seeds_needed for cell in cells if cell.seeds_needed), default=None)
    return text + (f"; about {needed} seeds would decide what seeds can" if needed else "")
