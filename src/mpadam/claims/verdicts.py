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

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpadam.claims.data import Claim
from mpadam.claims.samples import ClaimCell
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
class Judged:
    claim: Claim
    verdict: str
    reason: str
    cells: tuple[ClaimCell, ...]

    @property
    def seeds_needed(self) -> int | None:
        return max((cell.seeds_needed for cell in self.cells if cell.seeds_needed), default=None)


def judge(claim: Claim, samples: Sequence[ClaimCell], *, alpha: float, pooled: bool = False) -> Judged:
    """The verdict of a claim on the cells that a study has.

    pooled: one variance for the cells of a family (own for those with a diverged run, whose spread is made up).
    """
    families: dict[str, list[int]] = {}
    for place, one in enumerate(samples):
        families.setdefault(one.contrast if claim.family == "contrast" else "", []).append(place)
    found: dict[int, ClaimCell] = {}
    for members in families.values():
        cells = _judge_family(claim, [samples[place] for place in members], alpha, pooled)
        found |= zip(members, cells, strict=True)
    cells = [found[place] for place in range(len(samples))]
    verdict = _combined(claim.holds, cells)
    return Judged(claim, verdict, _why(cells, verdict), tuple(cells))


# --- one family of cells ---------------------------------------------------------------------------------------------


def _judge_family(claim: Claim, members: Sequence[ClaimCell], alpha: float, pooled: bool) -> list[ClaimCell]:
    cells = [_describe(cell, alpha, len(members)) for cell in members]
    if pooled:
        cells = _with_pooled_spread(cells, alpha)
    cells = [_tested(claim, cell) if _may_test(cell) else cell for cell in cells]
    adjusted = holm([1.0 if cell.p is None else cell.p for cell in cells])
    return [
        _exact(claim, cell) if cell.p is None else _decided(claim, cell, p_holm, alpha)
        for cell, p_holm in zip(cells, adjusted, strict=True)
    ]


def _describe(cell: ClaimCell, alpha: float, size: int) -> ClaimCell:
    """Spread and intervals of what is in, and the reason why there can be no verdict, if there is one."""
    verdict, reason = _obstacle(cell)
    cell = replace(cell, verdict=verdict, reason=reason, family_size=size)
    return _with_spread(cell, spread(list(cell.values.values())), alpha) if cell.n > 1 else cell


def _with_spread(cell: ClaimCell, found: Spread, alpha: float) -> ClaimCell:
    cell = replace(cell, spread=found)
    assert cell.ruler is not None
    return replace(cell, family_interval=cell.ruler.interval(1 - alpha / cell.family_size))


def _obstacle(cell: ClaimCell) -> tuple[str, str]:
    """Why a cell gets no verdict; ("", "") where it may."""
    n, asked, premise = cell.n, len(cell.asked), cell.premise_spread
    if n == 0:
        return NOT_RUN, f"0 of {asked} seeds are in" if asked else "not measured"
    if cell.untestable:
        return NOT_TESTABLE, "; ".join(cell.untestable)
    if cell.exact:
        return "", ""
    obstacles = (
        (NOT_BRACKETED, cell.edges, f"best rate without a worse neighbour on both sides: {', '.join(cell.edges)}"),
        (INCONCLUSIVE, n < LEAST_SEEDS, f"n = {n} < {LEAST_SEEDS} seeds"),
        (INCONCLUSIVE, cell.missing, f"{n} of {asked} seeds are in; no verdict before all are"),
        (INCONCLUSIVE, cell.tied, f"both sides diverged at seed {', '.join(map(str, cell.tied))}"),
        (NOT_TESTABLE, premise and premise.interval(0.95)[0] <= 0, _not_shown(cell, premise)),
    )
    return next(((verdict, reason) for verdict, found, reason in obstacles if found), ("", ""))


def _not_shown(cell: ClaimCell, premise: Spread | None) -> str:
    if premise is None:
        return ""
    return f"{cell.needs} is not shown: {signed(premise.mean)} ({interval_text(premise.interval(0.95))})"


def _may_test(cell: ClaimCell) -> bool:
    return not cell.verdict and not cell.exact


def _with_pooled_spread(cells: Sequence[ClaimCell], alpha: float) -> list[ClaimCell]:
    mine = [i for i, c in enumerate(cells) if c.spread is not None and _may_test(c) and not c.diverged]
    spreads = dict(zip(mine, pool([s for i in mine if (s := cells[i].spread)]), strict=True))
    return [_with_spread(cell, spreads[i], alpha) if i in spreads else cell for i, cell in enumerate(cells)]


# --- the test --------------------------------------------------------------------------------------------------------


def _tested(claim: Claim, cell: ClaimCell) -> ClaimCell:
    """With two-sided p-values of the threshold, by Student's t, of a share by exact tails.

    The premise has to be shown as well, so p is the larger of the two; where that is the premise's, the reason says so.
    """
    ruler, premise = cell.ruler, cell.premise_spread
    assert ruler is not None
    mean, flipped = ruler.mean, None if cell.counted else flips(list(cell.values.values()))
    p = p_value(ruler, mean, claim.direction, claim.threshold)
    p_flip = p_value(flipped, mean, claim.direction, claim.threshold) if flipped else None
    needed = p_value(premise, premise.mean, "above", 0.0) if premise else 0.0
    blocked = f"{cell.needs} is shown for this cell, but not for all cells together" if needed > p else ""
    return replace(cell, p=max(p, needed), p_flip=p_flip, reason=blocked)


def _claimed_side(claim: Claim, mean: float) -> bool:
    value = abs(mean) if claim.direction in ("within", "outside") else mean
    return (value > claim.threshold) == (claim.direction in ("above", "outside"))


def _decided(claim: Claim, cell: ClaimCell, p_holm: float, alpha: float) -> ClaimCell:
    assert cell.ruler is not None
    assert cell.family_interval is not None
    mean, interval = cell.ruler.mean, cell.family_interval
    cell = replace(cell, p_holm=p_holm)
    if p_holm <= alpha:
        verdict = SUPPORTED if _claimed_side(claim, mean) else CONTRADICTED
        return replace(cell, verdict=verdict, reason=shown(claim, mean, interval))
    if cell.reason or cell.diverged:
        return replace(cell, verdict=INCONCLUSIVE, reason=cell.reason or "a run diverged")
    if cell.counted:
        return replace(cell, verdict=INCONCLUSIVE, reason=_too_few_probes(claim, cell, alpha))
    needed = _needed(claim, cell, alpha)
    text = f"about {needed} seeds would decide" if needed else _BEYOND
    return replace(cell, verdict=INCONCLUSIVE, reason=text, seeds_needed=needed)


def _too_few_probes(claim: Claim, cell: ClaimCell, alpha: float) -> str:
    assert cell.counted is not None
    k, n = cell.counted
    needed = Share(k, n).probes_needed(claim.threshold, alpha / cell.family_size)
    return f"{k} of {n} probes" + (f"; {needed} such probes would decide" if needed else "")


def _needed(claim: Claim, cell: ClaimCell, alpha: float) -> int | None:
    """More seeds than there are, in any case: with these the cell was not decided."""
    assert cell.spread is not None
    mean = cell.spread.mean if claim.direction in ("above", "below") else abs(cell.spread.mean)
    found = seeds_needed(mean - claim.threshold, cell.spread.sd, alpha / cell.family_size)
    return None if found is None else max(found, cell.n + 1)


def _exact(claim: Claim, cell: ClaimCell) -> ClaimCell:
    """A number without chance lies on one side or the other; a cell that has its verdict keeps it."""
    if cell.verdict or cell.mean is None:
        return cell
    verdict = SUPPORTED if _claimed_side(claim, cell.mean) else CONTRADICTED
    return replace(cell, verdict=verdict, reason="; ".join(cell.flags))


# --- the claim -------------------------------------------------------------------------------------------------------


def _combined(holds: str, cells: Sequence[ClaimCell]) -> str:
    """In every cell: contradicted by one, supported by all. In any: the other way round.

    Cells whose premise is not shown are outside of what is claimed; those that the study compares unequally are not.
    """
    decisive, unanimous = (CONTRADICTED, SUPPORTED) if holds == "every" else (SUPPORTED, CONTRADICTED)
    within = {cell.verdict for cell in cells if cell.verdict != NOT_TESTABLE or cell.untestable}
    seen = within if within - {NOT_RUN} else {cell.verdict for cell in cells}
    if seen <= {NOT_RUN}:
        return NOT_RUN
    if decisive in seen:
        return decisive
    if seen == {unanimous}:
        return unanimous
    rest = seen - {unanimous, NOT_RUN}
    return rest.pop() if len(rest) == 1 else INCONCLUSIVE


def _why(cells: Sequence[ClaimCell], verdict: str) -> str:
    if not cells:
        return "the study has no such runs or measurements"
    counts = Counter(cell.verdict for cell in cells)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    text = f"{len(cells)} cell{'s' if len(cells) > 1 else ''}: {told}"
    missing = [f"{cell.where} ({cell.contrast})" for cell in cells if cell.verdict == NOT_RUN]
    if missing and len(missing) < len(cells):
        text += f"; not run: {', '.join(missing)}"
    if verdict != INCONCLUSIVE:
        return text
    if any(cell.reason == _BEYOND for cell in cells):
        return f"{text}; {_BEYOND} in some cell"
    needed = max((cell.seeds_needed for cell in cells if cell.seeds_needed), default=None)
    return text + (f"; about {needed} seeds would decide what seeds can" if needed else "")
