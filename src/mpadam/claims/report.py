"""The verdicts as a record: claims.json with every number, which tables, figures and the page are made of."""

from pathlib import Path
from typing import Any

from mpadam.analysis.collect import Collected
from mpadam.atomic import write_json
from mpadam.claims.examine import Verdicts
from mpadam.claims.reported import below_paper_scale
from mpadam.claims.samples import ClaimCell
from mpadam.claims.statistics import Flips
from mpadam.claims.verdicts import Judged

FILE = "claims.json"


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
    """For the terminal: a line a claim, and the hash of what was claimed."""
    width = max(len(judged.claim.id) for judged in verdicts.judged)
    lines = [f"{j.claim.id:{width}}  {j.verdict:17}  {j.claim.title} ({j.reason})" for j in verdicts.judged]
    return [*lines, f"SHA-256 of the claims: {verdicts.claims.sha256}"]
