"""From a study to the verdicts on all claims, and these as a record: claims.json with every number, of which tables,
figures and the page are made.

examine(collect(config, paths), load_claims(), diagnostics=paths.output / "diagnostics")
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpadam.analysis.collect import Collected
from mpadam.analysis.probes import Probes, read_probes
from mpadam.atomic import write_json
from mpadam.claims.cells import Grid, grid_of, slots
from mpadam.claims.data import Claim, Claims, Exact, Fit, Metric, Perplexity, Probe, Rates, Trend, optimizers_of
from mpadam.claims.measured import absent, fit_samples, measured
from mpadam.claims.rates import width_samples, with_rates
from mpadam.claims.reported import below_paper_scale, learned_nothing, reported_for
from mpadam.claims.samples import ClaimCell, Numbers, counted, perplexities, probe_numbers, sample
from mpadam.claims.statistics import Flips
from mpadam.claims.verdicts import CONTRADICTED, SUPPORTED, Judged, judge
from mpadam.optim.names import parse_optimizer_name
from mpadam.study.config import TuningConfig

FILE = "claims.json"


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
    study = _Study(collected, diagnostics, grid_of(collected), perplexities(collected), read_probes(collected))
    judged: dict[str, Judged] = {}
    for claim in sorted(wanted, key=lambda claim: bool(getattr(claim.metric, "of", ()))):
        judged[claim.id] = judge(claim, _samples(claim.metric, study, judged), alpha=claims.alpha, pooled=pooled)
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
    probes: Probes


def _samples(metric: Metric, study: _Study, judged: Mapping[str, Judged]) -> list[ClaimCell]:
    """judged: the claims before it."""
    match metric:
        case Perplexity() | Trend():
            return _of_runs(metric, study)
        case Probe():
            return _of_probes(metric, study)
        case Fit():
            return fit_samples(metric, study.diagnostics)
        case Rates():
            return width_samples(metric, study.collected)
        case Exact(measurement="sweep_agreement"):
            return sweep_agreement([judged[name] for name in metric.of], study.collected.config.tuning)
    return measured(metric.measurement, study.diagnostics)


def _of_runs(metric: Perplexity | Trend, study: _Study) -> list[ClaimCell]:
    found = []
    for slot in slots(metric, study.collected.config, study.grid):
        one = sample(slot, study.numbers, learned_nothing(study.collected))
        one = with_rates(one, slot, study.collected)
        found.append(replace(one, reported=reported_for(slot, study.collected)))
    return found


def _of_probes(metric: Probe, study: _Study) -> list[ClaimCell]:
    """Quantities noted along training; nothing to show where no run has probes."""
    numbers = probe_numbers(metric, study.probes, study.collected)
    if not numbers:
        return []
    found = []
    for slot in slots(metric, study.collected.config, study.grid):
        one = sample(slot, numbers, None)
        if len({key.optimizer for key in slot.keys}) > 1:  # each at rates of its own
            one = with_rates(one, slot, study.collected)
        found.append(replace(one, counted=counted(metric, one, study.probes)) if one.values else one)
    return found


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


# --- the record -------------------------------------------------------------------------------------------------------


def write_claims(verdicts: Verdicts, collected: Collected) -> Path:
    path = collected.paths.output / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, claims_content(verdicts, collected))
    return path


def claims_content(verdicts: Verdicts, collected: Collected) -> dict[str, Any]:
    """All claims with all of their cells; a number that does not exist is null."""
    return {
        "study": collected.config.study,
        "claims_sha256": verdicts.claims.sha256,
        "runs_digest": collected.digest,
        "alpha": verdicts.claims.alpha,
        "pooled": verdicts.pooled,
        "directions_only": below_paper_scale(collected),
        "claims": [_claim(judged) for judged in verdicts.judged],
    }


def _claim(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    words = ("id", "title", "statement", "source", "grade", "direction", "threshold", "holds", "family")
    return {
        **{name: getattr(claim, name) for name in (*words, "falsified_by", "note")},
        "unit": claim.measured_in,
        "verdict": judged.verdict,
        "reason": judged.reason,
        "seeds_needed": judged.seeds_needed,
        "cells": [_cell(cell) for cell in judged.cells],
    }


def _cell(cell: ClaimCell) -> dict[str, Any]:
    return {
        "contrast": cell.contrast,
        "where": cell.where,
        **{name: getattr(cell, name) for name in ("model", "budget", "regime")},
        "verdict": cell.verdict,
        "reason": cell.reason,
        "seeds_needed": cell.seeds_needed,
        "exact": cell.exact,
        "n": cell.n,
        "seeds": list(cell.values),
        "missing": list(cell.missing),
        "diverged": {str(seed): list(entries) for seed, entries in cell.diverged.items()},
        "values": list(cell.values.values()),
        "mean": cell.mean,
        "sd": cell.spread.sd if cell.spread else None,
        "df": cell.spread.df if cell.spread else None,
        "interval_95": cell.interval,
        "interval_family": cell.family_interval,
        "family_size": cell.family_size,
        "p": cell.p,
        "p_holm": cell.p_holm,
        "p_sign_flip": cell.p_flip,
        "p_sign_flip_least": Flips(tuple(cell.values.values())).least if cell.p_flip is not None else None,
        "untestable": list(cell.untestable),
        "premise": _premise(cell),
        "parts": cell.parts,
        "sweep": vars(cell.sweep) if cell.sweep else None,
        "paper": _paper(cell),
        "edges": list(cell.edges),
        "flags": list(cell.flags),
        "cell": cell.cell.folder if cell.cell else "",
        "runs": list(cell.runs),
    }


def _premise(cell: ClaimCell) -> dict[str, Any] | None:
    found = cell.premise_spread
    return {"needs": cell.needs, "mean": found.mean, "interval_95": found.interval(0.95)} if found else None


def _paper(cell: ClaimCell) -> dict[str, Any] | None:
    found = cell.reported
    if found is None:
        return None
    return {**vars(found), "difference": None if cell.mean is None else cell.mean - found.value}


def summary_lines(verdicts: Verdicts) -> list[str]:
    width = max(len(judged.claim.id) for judged in verdicts.judged)
    lines = [f"{j.claim.id:{width}}  {j.verdict:17}  {j.claim.title} ({j.reason})" for j in verdicts.judged]
    return [*lines, f"SHA-256 of the claims: {verdicts.claims.sha256}"]
