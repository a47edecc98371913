"""From numbers to verdicts.

A claim says on which side of a threshold a number lies, the least difference that would matter. One two-sided test
of each cell answers both ways: *supported* where the number is shown to lie on the claimed side, *contradicted* where
it is shown to lie on the other, *inconclusive* where the interval has the threshold inside. So "no gain to speak of" is
an answer too, and absence of evidence is none.

No verdict without the right to one: *not run*, *not testable here* (unequal tuning; or low precision costs nothing, and
there is nothing to remedy), *not bracketed* (a best rate without a worse neighbour on both sides), fewer than three
seeds, seeds still missing. Holm's correction counts all cells of a family, those without a test too, so that what is
missing sharpens nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpadam.claims.data import Claim
from mpadam.claims.samples import Sample
from mpadam.claims.statistics import (
    MOST_SEEDS,
    Share,
    Spread,
    flips,
    holm,
    p_value,
    pool,
    seeds_needed,
    spread,
)
from mpadam.claims.words import interval_text, shown, signed

SUPPORTED, CONTRADICTED, INCONCLUSIVE = "supported", "contradicted", "inconclusive"
NOT_TESTABLE, NOT_BRACKETED, NOT_RUN = "not testable here", "not bracketed", "not run"
VERDICTS = (SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE, NOT_BRACKETED, NOT_RUN)
LEAST_SEEDS = 3
_BEYOND = f"more than {MOST_SEEDS} seeds would be needed"


@dataclass(frozen=True)
class CellVerdict:
    """A cell and what is said of it.

    spread: of the seeds that are in, None below two; premise: that of the premise. interval: 95%, of this cell alone;
    family_interval: such that all cells of the family hold together. p: two-sided, of the threshold; p_holm: adjusted;
    p_flip: exact, by flipping signs, of this cell alone and without its premise. None where nothing is tested.
    seeds_needed: that would decide, should the truth be what was seen; None where it is not known or not needed.
    """

    sample: Sample
    verdict: str
    reason: str = ""
    spread: Spread | None = None
    premise: Spread | None = None
    interval: tuple[float, float] | None = None
    family_interval: tuple[float, float] | None = None
    family_size: int = 1
    p: float | None = None
    p_holm: float | None = None
    p_flip: float | None = None
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
    verdict = _combined(claim.holds, cells)
    return Judged(claim, verdict, _why(cells, verdict), tuple(cells))


# --- one family of cells ---------------------------------------------------------------------------------------------


def _judge_family(claim: Claim, samples: Sequence[Sample], alpha: float, pooled: bool) -> list[CellVerdict]:
    cells = [_describe(sample, alpha, len(samples)) for sample in samples]
    if pooled:
        cells = _with_pooled_spread(cells, alpha)
    tests = [_test(claim, cell) if _may_test(cell) else None for cell in cells]
    adjusted = holm([test.p if test else 1.0 for test in tests])
    return [
        _exact(claim, cell) if test is None else _decided(claim, cell, test, p, alpha)
        for cell, test, p in zip(cells, tests, adjusted, strict=True)
    ]


def _describe(sample: Sample, alpha: float, size: int) -> CellVerdict:
    """Spread and intervals of what is in, and the reason why there can be no verdict, if there is one."""
    premise = spread(list(sample.premise.values())) if sample.premise and len(sample.premise) > 1 else None
    verdict, reason = _obstacle(sample, premise)
    cell = CellVerdict(sample, verdict, reason, premise=premise, family_size=size)
    if len(sample.values) < 2:
        return cell
    return _with_spread(cell, spread(list(sample.values.values())), alpha)


def _with_spread(cell: CellVerdict, found: Spread, alpha: float) -> CellVerdict:
    counted = cell.sample.counted
    ruler = found if counted is None else Share(*counted)
    whole = ruler.interval(1 - alpha / cell.family_size)
    return replace(cell, spread=found, interval=ruler.interval(0.95), family_interval=whole)


def _obstacle(sample: Sample, premise: Spread | None) -> tuple[str, str]:
    """Why a cell gets no verdict; ("", "") where it may."""
    n, asked = len(sample.values), len(sample.asked)
    if n == 0:
        return NOT_RUN, f"0 of {asked} seeds are in" if asked else "not measured"
    if sample.untestable:
        return NOT_TESTABLE, "; ".join(sample.untestable)
    if sample.exact:
        return "", ""
    obstacles = (
        (NOT_BRACKETED, sample.edges, f"best rate without a worse neighbour on both sides: {', '.join(sample.edges)}"),
        (INCONCLUSIVE, n < LEAST_SEEDS, f"n = {n} < {LEAST_SEEDS} seeds"),
        (INCONCLUSIVE, sample.missing, f"{n} of {asked} seeds are in; no verdict before all are"),
        (INCONCLUSIVE, sample.tied, f"both sides diverged at seed {', '.join(map(str, sample.tied))}"),
        (NOT_TESTABLE, premise and premise.interval(0.95)[0] <= 0, _not_shown(sample, premise)),
    )
    return next(((verdict, reason) for verdict, found, reason in obstacles if found), ("", ""))


def _not_shown(sample: Sample, premise: Spread | None) -> str:
    if premise is None:
        return ""
    return f"{sample.needs} is not shown: {signed(premise.mean)} ({interval_text(premise.interval(0.95))})"


def _may_test(cell: CellVerdict) -> bool:
    return not cell.verdict and not cell.sample.exact


def _with_pooled_spread(cells: Sequence[CellVerdict], alpha: float) -> list[CellVerdict]:
    mine = [i for i, c in enumerate(cells) if c.spread is not None and _may_test(c) and not c.sample.diverged]
    spreads = dict(zip(mine, pool([s for i in mine if (s := cells[i].spread)]), strict=True))
    return [_with_spread(cell, spreads[i], alpha) if i in spreads else cell for i, cell in enumerate(cells)]


# --- the test --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Test:
    """Two-sided p-values of the threshold, and whether the number lies on the claimed side of it.

    p: by Student's t, of a share by exact tails; the premise has to be shown as well, so the larger one of the two.
    """

    mean: float
    p: float
    claimed_side: bool
    p_flip: float | None = None
    blocked: str = ""


def _test(claim: Claim, cell: CellVerdict) -> _Test:
    assert cell.spread is not None
    if cell.sample.counted is not None:
        share = Share(*cell.sample.counted)
        mean = share.k / share.n
        return _Test(mean, p_value(share, mean, claim.direction, claim.threshold), _claimed_side(claim, mean))
    mean, flipped = cell.spread.mean, flips(list(cell.sample.values.values()))
    p, p_flip = (
        None if ruler is None else p_value(ruler, mean, claim.direction, claim.threshold)
        for ruler in (cell.spread, flipped)
    )
    assert p is not None
    test = _Test(mean, p, _claimed_side(claim, mean), p_flip)
    if cell.premise is None:
        return test
    needed = p_value(cell.premise, cell.premise.mean, "above", 0.0)
    blocked = f"{cell.sample.needs} is shown for this cell, but not for all cells together" if needed > p else ""
    return replace(test, p=max(p, needed), blocked=blocked)


def _claimed_side(claim: Claim, mean: float) -> bool:
    value = abs(mean) if claim.direction in ("within", "outside") else mean
    return (value > claim.threshold) == (claim.direction in ("above", "outside"))


def _decided(claim: Claim, cell: CellVerdict, test: _Test, p_holm: float, alpha: float) -> CellVerdict:
    assert cell.family_interval is not None
    told = shown(claim, test.mean, cell.family_interval)
    cell = replace(cell, p=test.p, p_holm=p_holm, p_flip=test.p_flip)
    if p_holm <= alpha:
        return replace(cell, verdict=SUPPORTED if test.claimed_side else CONTRADICTED, reason=told)
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
    verdict = SUPPORTED if _claimed_side(claim, cell.mean) else CONTRADICTED
    return replace(cell, verdict=verdict, reason="; ".join(cell.sample.flags))


# --- the claim -------------------------------------------------------------------------------------------------------


def _combined(holds: str, cells: Sequence[CellVerdict]) -> str:
    """In every cell: contradicted by one, supported by all. In any: the other way round.

    Cells whose premise is not shown are outside of what is claimed; those that the study compares unequally are not.
    """
    decisive, unanimous = (CONTRADICTED, SUPPORTED) if holds == "every" else (SUPPORTED, CONTRADICTED)
    within = {cell.verdict for cell in cells if cell.verdict != NOT_TESTABLE or cell.sample.untestable}
    seen = within if within - {NOT_RUN} else {cell.verdict for cell in cells}
    if seen <= {NOT_RUN}:
        return NOT_RUN
    if decisive in seen:
        return decisive
    if seen == {unanimous}:
        return unanimous
    rest = seen - {unanimous, NOT_RUN}
    return rest.pop() if len(rest) == 1 else INCONCLUSIVE


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
