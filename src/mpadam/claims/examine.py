"""From a study to the verdicts on all claims.

examine(collect(config, paths), load_claims(), diagnostics=paths.output / "diagnostics")
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpadam.analysis.collect import Collected
from mpadam.analysis.probes import Looks, read_looks
from mpadam.claims.cells import Grid, grid_of, slots
from mpadam.claims.data import Claim, Claims, Exact, Fit, Perplexity, Probe, Rates, Trend, optimizers_of
from mpadam.claims.measured import MEASUREMENTS, absent, fit_samples
from mpadam.claims.probes import counted, probe_numbers
from mpadam.claims.rates import with_rates
from mpadam.claims.reported import learned_nothing, reported_for
from mpadam.claims.samples import ClaimCell, Numbers, perplexities, sample
from mpadam.claims.verdicts import CONTRADICTED, SUPPORTED, Judged, judge
from mpadam.claims.widths import width_samples
from mpadam.optim.names import parse_optimizer_name
from mpadam.study.config import TuningConfig


@dataclass(frozen=True)
class Verdicts:
    claims: Claims
    judged: tuple[Judged, ...]
    pooled: bool


def examine(collected: Collected, claims: Claims, *, diagnostics: Path, pooled: bool = False) -> Verdicts:
    """Judge every claim on what the study has. diagnostics: folder of `mpadam diagnose`, which need not be there.

    Raises ValueError where a claim names an optimizer that there is not, or a diagnostic's file is not what it wrote.
    """
    check_optimizers(claims, collected.config.optimizers)
    wanted = [claim for claim in claims.claims if collected.config.report == "all" or is_of_updates(claim)]
    study = _Study(collected, diagnostics, grid_of(collected), perplexities(collected), read_looks(collected))
    judged: dict[str, Judged] = {}
    for claim in sorted(wanted, key=lambda claim: bool(getattr(claim.metric, "of", ()))):
        found = _SAMPLES[type(claim.metric)](claim, study, judged)
        judged[claim.id] = judge(claim, found, alpha=claims.alpha, pooled=pooled)
    return Verdicts(claims, tuple(judged[claim.id] for claim in wanted), pooled)


def is_of_updates(claim: Claim) -> bool:
    """Whether probes answer it, or the record of Figure 1: what `report: updates` has verdicts on."""
    growth = isinstance(claim.metric, Exact) and claim.metric.measurement == "growth"
    return growth or isinstance(claim.metric, Probe)


def check_optimizers(claims: Claims, entries: Collection[str]) -> None:
    """Raise ValueError for a name that is neither an entry of the study nor, up to an @, an optimizer's: it would read
    "not run" whatever is run. What stands after the @ is any study's to choose."""
    named = ((claim.id, name) for claim in claims.claims for name in optimizers_of(claim.metric))
    for claim_id, name in named:
        if name in entries:
            continue
        try:
            parse_optimizer_name(name.partition("@")[0])
        except ValueError as error:
            known = ", ".join(entries)
            raise ValueError(f"claim {claim_id}: {error}. Nor is it an entry of the study: {known}") from None


@dataclass(frozen=True)
class _Study:
    collected: Collected
    diagnostics: Path
    grid: Grid
    numbers: Numbers
    looks: Looks


Judgements = Mapping[str, Judged]


def _of_runs(claim: Claim, study: _Study, _: Judgements) -> list[ClaimCell]:
    assert isinstance(claim.metric, Perplexity | Trend)
    found = []
    for slot in slots(claim.metric, study.collected.config, study.grid):
        one = sample(slot, study.numbers, learned_nothing(study.collected))
        one = with_rates(one, slot, study.collected)
        found.append(replace(one, reported=reported_for(slot, study.collected)))
    return found


def _of_probes(claim: Claim, study: _Study, _: Judgements) -> list[ClaimCell]:
    """Quantities noted along training; nothing to show where no run has looked."""
    assert isinstance(claim.metric, Probe)
    numbers = probe_numbers(claim.metric, study.looks, study.collected)
    if not numbers:
        return []
    found = []
    for slot in slots(claim.metric, study.collected.config, study.grid):
        one = sample(slot, numbers, None)
        if len({key.optimizer for key in slot.keys}) > 1:  # each at rates of its own
            one = with_rates(one, slot, study.collected)
        found.append(replace(one, counted=counted(claim.metric, one, study.looks)) if one.values else one)
    return found


def _of_matrices(claim: Claim, study: _Study, _: Judgements) -> list[ClaimCell]:
    assert isinstance(claim.metric, Fit)
    return fit_samples(claim.metric, study.diagnostics)


def _of_trials(claim: Claim, study: _Study, _: Judgements) -> list[ClaimCell]:
    assert isinstance(claim.metric, Rates)
    return width_samples(claim.metric, study.collected)


def _without_chance(claim: Claim, study: _Study, judged: Judgements) -> list[ClaimCell]:
    assert isinstance(claim.metric, Exact)
    if claim.metric.measurement == "sweep_agreement":
        return sweep_agreement([judged[name] for name in claim.metric.of], study.collected.config.tuning)
    return MEASUREMENTS[claim.metric.measurement](study.diagnostics)


def sweep_agreement(others: Sequence[Judged], tuning: TuningConfig) -> list[ClaimCell]:
    """Whether best trials and paired seeds lie on different sides of the threshold: 1 or 0, where seeds decide.

    Where trials are shorter than runs it is a question of length, not of chance, and no verdict is given.
    """
    found = []
    for claim, cell in ((judged.claim, cell) for judged in others for cell in judged.cells):
        if cell.sweep is not None and cell.sweep.best is not None and cell.verdict in (SUPPORTED, CONTRADICTED):
            best_side = (cell.sweep.best > claim.threshold) == (claim.direction == "above")
            value = float(best_side != (cell.verdict == SUPPORTED))
            name = f"best trials against seeds, {cell.contrast}"
            share = tuning.budget * tuning.steps_fraction / cell.budget if cell.budget else 1.0
            lengths = () if share == 1 else (f"a trial has {share:.0%} of the updates of a run",)
            found.append(ClaimCell(name, cell.where, {0: value}, (0,), exact=True, cell=cell.cell, untestable=lengths))
    return found or [absent("best trials against seeds", "cells that the seeds decide")]


_SAMPLES: Mapping[type, Callable[[Claim, _Study, Judgements], Sequence[ClaimCell]]] = {
    Perplexity: _of_runs,
    Trend: _of_runs,
    Probe: _of_probes,
    Fit: _of_matrices,
    Rates: _of_trials,
    Exact: _without_chance,
}
