"""A cell of a claim: one number for each seed, everything that a reader must know about it, and the verdict.

A run that diverged has no perplexity, and leaving its seed out would flatter its optimizer. It is scored as a model
that has learned nothing, a loss of ln(vocabulary), and never better than a run that completed: so it loses its pair,
and the spread that it brings keeps a cell from a verdict unless nearly every pair points the same way.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mpadam.analysis.cells import CellKey
from mpadam.analysis.collect import Collected
from mpadam.analysis.probes import Probes, largest_bins
from mpadam.claims.cells import Slot, Source, Weighted
from mpadam.claims.data import Probe
from mpadam.claims.statistics import Share, Spread, spread
from mpadam.study.load import ConfigError


@dataclass(frozen=True)
class Reported:
    """The paper's own number for a cell: perplexities of both optimizers, and the same contrast of them."""

    adamw: float
    m_plus_adam: float
    value: float
    grade: str


@dataclass(frozen=True)
class Sweep:
    """The contrast of best trials and of median ones; None where an optimizer has no trials of its own, or diverged."""

    best: float | None
    median: float | None


@dataclass(frozen=True)
class ClaimCell:
    """One cell of a claim, from the numbers of its runs to what is said of them.

    values: seed -> number, for the seeds of which every run is in; premise: the same of the premise, `needs`.
    parts: "optimizer branch regime" -> mean over these seeds, of every term; empty where a run diverged.
    untestable: why the study's design forbids a verdict, whatever its runs say.
    asked: seeds that the study asks for; missing: those of them without a number.
    diverged: seed -> entries whose run diverged.  tied: seeds whose terms diverged on both sides, so that nothing can
        be said.
    edges: "entry: rate" for every rate that is not bracketed (`study.tuning`).
    exact: the numbers come from a computation without chance: there is one, and no seed.
    counted: where the number is a share of probes, in how many of how many it held, all seeds together.
    runs: folders of the runs behind it, relative to the study's; cell: what the claim is about, the first that its
        contrast counts against.

    What `mpadam.claims.verdicts` adds; None where there is nothing to compute it from, or nothing is tested:
    spread: of the seeds that are in, two at least.  family_interval: such that all `family_size` cells hold together.
    p: two-sided, of the threshold; p_holm: adjusted; p_flip: exact, by flipping signs, of this cell alone and without
        its premise.
    seeds_needed: that would decide, should the truth be what was seen.
    """

    contrast: str
    where: str
    values: Mapping[int, float]
    asked: tuple[int, ...]
    model: str = ""
    budget: int | None = None
    regime: str = ""
    needs: str = ""
    premise: Mapping[int, float] | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    untestable: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    diverged: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    tied: tuple[int, ...] = ()
    edges: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    exact: bool = False
    counted: tuple[int, int] | None = None
    sweep: Sweep | None = None
    reported: Reported | None = None
    runs: tuple[str, ...] = ()
    cell: CellKey | None = None

    verdict: str = ""
    reason: str = ""
    spread: Spread | None = None
    family_interval: tuple[float, float] | None = None
    family_size: int = 1
    p: float | None = None
    p_holm: float | None = None
    p_flip: float | None = None
    seeds_needed: int | None = None

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float | None:
        return sum(self.values.values()) / self.n if self.values else None

    @property
    def ruler(self) -> Spread | Share | None:
        """What intervals and p-values are of: the spread over seeds, or a share of probes."""
        return Share(*self.counted) if self.counted and self.spread else self.spread

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%, of this cell alone."""
        return self.ruler.interval(0.95) if self.ruler else None

    @property
    def premise_spread(self) -> Spread | None:
        return spread(list(self.premise.values())) if self.premise and len(self.premise) > 1 else None


@dataclass(frozen=True)
class Number:
    """What a run contributes; value is infinite where it diverged."""

    value: float
    folder: str


Numbers = Mapping[tuple[Source, int], Number]
Rows = Mapping[int, Mapping[Source, float]]


def perplexities(collected: Collected) -> Numbers:
    """ln(validation perplexity) of every run that completed, infinity for those that diverged."""
    found = {}
    for run in collected.runs.to_dict("records"):
        key = CellKey(run["model"], int(run["budget"]), run["regime"], run["optimizer"])
        if run["status"] in ("completed", "diverged"):
            value = math.log(run["val_ppl"]) if run["status"] == "completed" else math.inf
            found[Source(key), int(run["seed"])] = Number(value, str(run["folder"]))
    return found


def sample(slot: Slot, numbers: Numbers, learned_nothing: float | None) -> ClaimCell:
    """The numbers of a slot, paired by seed.

    learned_nothing: loss of a model that has; None where the vocabulary is unknown, and then no run can be scored.
    """
    complete = [seed for seed in slot.seeds if all((source, seed) in numbers for source in slot.sources)]
    raw = {seed: {source: numbers[source, seed].value for source in slot.sources} for seed in complete}
    infinite = {seed: [source for source, value in row.items() if math.isinf(value)] for seed, row in raw.items()}
    lost = {seed: found for seed, found in infinite.items() if found}
    scored = _scored(raw, learned_nothing) if lost else raw
    own = [source for source, _ in slot.terms]
    diverged = {seed: both for seed, found in lost.items() if (both := [source for source in found if source in own])}
    only_premise = {seed: _entries(found) for seed, found in lost.items() if seed not in diverged}
    return ClaimCell(
        contrast=slot.contrast,
        where=slot.where,
        values={seed: _sum(slot.terms, row) for seed, row in scored.items()},
        asked=slot.seeds,
        model=slot.model,
        budget=slot.budget,
        regime=slot.regime,
        needs=slot.needs,
        premise={seed: _sum(slot.premise, row) for seed, row in scored.items()} if slot.premise else None,
        parts=_parts(own, raw) if raw and not diverged else {},
        untestable=(f"the study has no runs that show {slot.needs}",) if slot.needs and not slot.premise else (),
        missing=tuple(seed for seed in slot.seeds if seed not in raw),
        diverged={seed: _entries(found) for seed, found in diverged.items()},
        tied=tuple(seed for seed, found in diverged.items() if _both_sides(slot.terms, found)),
        flags=tuple(f"{'+'.join(names)} diverged at seed {seed}" for seed, names in only_premise.items()),
        runs=tuple(dict.fromkeys(numbers[source, seed].folder for seed in complete for source in slot.sources)),
        cell=next((source.cell for source, weight in slot.terms if weight < 0), slot.terms[0][0].cell),
    )


def _parts(sources: Sequence[Source], rows: Rows) -> dict[str, float]:
    names = {s: " ".join(filter(None, (s.cell.optimizer, s.branch, s.cell.regime))) for s in sources}
    return {name: math.fsum(row[source] for row in rows.values()) / len(rows) for source, name in names.items()}


def _entries(sources: Sequence[Source]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(source.cell.optimizer for source in sources))


def _scored(raw: Rows, learned_nothing: float | None) -> Rows:
    """With a loss for diverged runs, never below that of a run they are compared with."""
    if learned_nothing is None:
        raise ConfigError("a run diverged, and without data/manifest.json it cannot be scored: run the workflow's data")
    finite = [value for row in raw.values() for value in row.values() if math.isfinite(value)]
    worst = max([learned_nothing, *finite])
    return {seed: {source: min(value, worst) for source, value in row.items()} for seed, row in raw.items()}


def _sum(terms: Weighted, row: Mapping[Source, float]) -> float:
    return math.fsum(weight * row[source] for source, weight in terms)


def _both_sides(terms: Weighted, diverged: Sequence[Source]) -> bool:
    return len({weight > 0 for source, weight in terms if source in diverged}) == 2


# --- what the probes of runs gave, a number per run ------------------------------------------------------------------


_RUN = ["model", "budget", "regime", "optimizer", "seed"]
_WEIGHTS = "weights"  # the quantity that says how many weights a bin holds


def probe_numbers(metric: Probe, probes: Probes, collected: Collected) -> Numbers:
    """The mean over probes of every run that completed, each probe weighted by what it counted."""
    done = collected.runs[collected.runs["status"] == "completed"]
    folders = {tuple(run[column] for column in _RUN): str(run["folder"]) for run in done.to_dict("records")}
    branches = {term.branch for contrast in metric.contrasts for term in contrast.terms}
    found = {}
    for branch in branches:
        for (model, budget, regime, optimizer, seed), value in _means(_chosen(metric, branch, probes)):
            if (folder := folders.get((model, budget, regime, optimizer, seed))) is not None:
                found[Source(CellKey(model, budget, regime, optimizer), branch), seed] = Number(value, folder)
    return found


def counted(metric: Probe, sample: ClaimCell, probes: Probes) -> tuple[int, int] | None:
    """In how many probes of how many it held, where the quantity is whether the loss fell: all seeds of the cell."""
    if metric.quantity != "loss_fell" or sample.cell is None:
        return None
    rows = _chosen(metric, None, probes)
    here = (rows[["model", "budget", "regime", "optimizer"]] == list(vars(sample.cell).values())).all(axis=1)
    own = rows[here & rows["seed"].isin(list(sample.values))]
    return round(float((own["value"].astype(float) * own["count"]).sum())), int(own["count"].sum())


def _means(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, int, str, str, int], float]]:
    for labels, group in rows.groupby(_RUN, sort=False):
        value = np.average(group["value"].to_numpy(dtype=float), weights=group["count"].to_numpy(dtype=float))
        yield labels, float(value)  # type: ignore[misc]  # groupby types its keys as Hashable


def _chosen(metric: Probe, branch: str | None, probes: Probes) -> pd.DataFrame:
    """Rows with a number, of the quantity, the branch, and of the roles and magnitudes that the claim names."""
    rows = _of_roles(probes.of(metric.quantity), metric)
    wanted = rows["value"].notna() & (rows["count"] > 0)
    rows = rows[wanted if branch is None else wanted & (rows["branch"] == branch)]
    if metric.largest is None or rows.empty:
        return rows
    top = largest_bins(_of_roles(probes.of(_WEIGHTS), metric), [*_RUN, "step"], metric.largest)
    return rows.merge(top, on=[*_RUN, "step", "bin"])


def _of_roles(rows: pd.DataFrame, metric: Probe) -> pd.DataFrame:
    return rows if metric.roles is None else rows[rows["role"].isin(metric.roles)]
