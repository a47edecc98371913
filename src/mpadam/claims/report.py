"""The verdicts as files: claims.json with every number, and a table to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mpadam.analysis.claims.examine import Verdicts
from mpadam.analysis.claims.reported import below_paper_scale
from mpadam.analysis.claims.statistics import POWER, Flips
from mpadam.analysis.claims.verdicts import LEAST_SEEDS, CellVerdict, Judged
from mpadam.analysis.claims.words import interval_text, signed
from mpadam.analysis.collect import Collected
from mpadam.analysis.tables import Entry, Table
from mpadam.atomic import write_json

FILE = "claims.json"
SCALE = (
    "Every model of this study is a fraction of the paper's smallest: its verdicts are about these models, and a "
    "direction at most for the paper's."
)


def write_claims(verdicts: Verdicts, collected: Collected) -> Path:
    """claims.json in the folder of the view; returns it."""
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


def _cell(cell: CellVerdict) -> dict[str, Any]:
    sample = cell.sample
    return {
        "contrast": sample.contrast,
        "where": sample.where,
        **{name: getattr(sample, name) for name in ("model", "budget", "regime")},
        "verdict": cell.verdict,
        "reason": cell.reason,
        "seeds_needed": cell.seeds_needed,
        "exact": sample.exact,
        "n": cell.n,
        "seeds": list(sample.values),
        "missing": list(sample.missing),
        "diverged": {str(seed): list(entries) for seed, entries in sample.diverged.items()},
        "values": list(sample.values.values()),
        "mean": cell.mean,
        "sd": cell.spread.sd if cell.spread else None,
        "df": cell.spread.df if cell.spread else None,
        "interval_95": cell.interval,
        "interval_family": cell.family_interval,
        "family_size": cell.family_size,
        "p": cell.p,
        "p_holm": cell.p_holm,
        "p_sign_flip": cell.p_flip,
        "p_sign_flip_least": Flips(tuple(sample.values.values())).least if cell.p_flip is not None else None,
        "untestable": list(sample.untestable),
        "premise": _premise(cell),
        "parts": sample.parts,
        "sweep": vars(sample.sweep) if sample.sweep else None,
        "paper": _paper(cell),
        "edges": list(sample.edges),
        "flags": list(sample.flags),
        "cell": sample.cell.folder if sample.cell else "",
        "runs": list(sample.runs),
    }


def _premise(cell: CellVerdict) -> dict[str, Any] | None:
    """What has to be above 0, with its 95% interval."""
    if cell.premise is None:
        return None
    return {"needs": cell.sample.needs, "mean": cell.premise.mean, "interval_95": cell.premise.interval(0.95)}


def _paper(cell: CellVerdict) -> dict[str, Any] | None:
    """The paper's number, ours less it."""
    found = cell.sample.reported
    if found is None:
        return None
    return {**vars(found), "difference": None if cell.mean is None else cell.mean - found.value}


# --- the table -------------------------------------------------------------------------------------------------------

HEADER = (
    *(
        "claim",
        "comparison",
        "where",
        "n",
        "difference",
        "95% interval",
        "family interval",
        "p",
        "exact p",
        "verdict",
        "why",
    ),
    *("sweep best", "sweep median", "paper", "ours - paper", "flags"),
)


def claims_table(verdicts: Verdicts, collected: Collected) -> Table:
    """A row a cell of a claim."""
    return Table(
        name="claims",
        title="Claims, cell by cell",
        caption=_caption(verdicts),
        header=HEADER,
        rows=tuple(_row(judged, cell) for judged in verdicts.judged for cell in judged.cells),
        headings=3,
        data=_data(verdicts),
        notes=_notes(verdicts, collected),
    )


def _row(judged: Judged, cell: CellVerdict) -> tuple[Entry, ...]:
    sample = cell.sample
    sweep, paper = sample.sweep, _paper(cell)
    texts = (
        signed(None if sample.diverged else cell.mean) or ("div." if sample.diverged else ""),
        "" if sample.diverged else interval_text(cell.interval),
        "" if sample.diverged else interval_text(cell.family_interval),
        "" if cell.p_holm is None else _p_text(cell.p_holm),
        "" if cell.p_flip is None else _p_text(cell.p_flip),
        cell.verdict,
        cell.reason,
        signed(sweep.best if sweep else None),
        signed(sweep.median if sweep else None),
        signed(paper["value"] if paper else None),
        signed(paper["difference"] if paper else None),
        "; ".join(flags_of(cell)),
    )
    names = (judged.claim.id, sample.contrast, sample.where)
    n = "exact" if sample.exact else f"{cell.n}"
    return (*map(Entry, names), Entry(n, sample.cell), Entry(texts[0], sample.cell), *map(Entry, texts[1:]))


def flags_of(cell: CellVerdict) -> list[str]:
    """What a reader must know of a cell's runs and rates."""
    lost = [f"{'+'.join(entries)} diverged at seed {seed}" for seed, entries in cell.sample.diverged.items()]
    return [*lost, *cell.sample.flags]


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _caption(verdicts: Verdicts) -> str:
    variance = "one for the cells of a family, the largest" if verdicts.pooled else "of each cell's own"
    return (
        "One row for each cell of a claim (its number, and its sentence, are above). difference: mean over paired "
        "seeds, positive in favour of the first; in ln perplexity unless the claim says otherwise. Intervals are "
        f"Student's for that mean, with a standard deviation {variance}; the family's hold for all of its cells "
        f"together. p: two-sided, of the claim's threshold, after Holm; a verdict needs {verdicts.claims.alpha:g} and "
        f"{LEAST_SEEDS} seeds. exact p: of the same threshold and the cell alone, by flipping the signs of the "
        "differences in all ways; it assumes no normal distribution and decides no verdict. not testable here: low "
        "precision is not shown to cost AdamW anything, or one side took its rates from elsewhere and the other was "
        "tuned. div.: a run diverged; it counts as one that has learned nothing, and there is no mean. sweep: the same "
        "difference of the tuning's best and median trials. Seeds that would decide: with "
        f"{POWER:.0%} power, were the truth what is seen. paper: its own number (grade Q) where the study has the "
        "paper's model. flags: what was not equal between the optimizers compared."
    )


def _notes(verdicts: Verdicts, collected: Collected) -> tuple[str, ...]:
    told = [f"claims.yaml has the SHA-256 {verdicts.claims.sha256}."]
    if below_paper_scale(collected):
        told.append(SCALE)
    few = sorted({cell.n for one in verdicts.judged for cell in one.cells if cell.p_flip is not None and cell.n < 6})
    told += [f"With {n} seeds an exact p cannot be below {2.0 ** (1 - n):g}; with six it can be 0.03125." for n in few]
    idle = [judged.claim.id for judged in verdicts.judged if not judged.cells]
    if idle:
        told.append(f"Without a cell in this study: {', '.join(idle)}.")
    return tuple(told)


def _data(verdicts: Verdicts) -> pd.DataFrame:
    """The cells in tidy form."""
    rows = []
    for judged in verdicts.judged:
        for cell in judged.cells:
            sample, paper = cell.sample, _paper(cell)
            low, high = cell.interval or (None, None)
            family_low, family_high = cell.family_interval or (None, None)
            rows.append(
                {
                    "claim": judged.claim.id,
                    "claim_verdict": judged.verdict,
                    **{name: getattr(sample, name) for name in ("contrast", "where", "model", "budget", "regime")},
                    "unit": judged.claim.measured_in,
                    "threshold": judged.claim.threshold,
                    "verdict": cell.verdict,
                    "reason": cell.reason,
                    "n": cell.n,
                    "mean": None if sample.diverged else cell.mean,
                    "sd": None if sample.diverged or not cell.spread else cell.spread.sd,
                    "low": None if sample.diverged else low,
                    "high": None if sample.diverged else high,
                    "family_low": None if sample.diverged else family_low,
                    "family_high": None if sample.diverged else family_high,
                    "p": cell.p,
                    "p_holm": cell.p_holm,
                    "p_sign_flip": cell.p_flip,
                    "seeds_needed": cell.seeds_needed,
                    "diverged": sum(map(len, sample.diverged.values())),
                    "missing": len(sample.missing),
                    "sweep_best": sample.sweep.best if sample.sweep else None,
                    "sweep_median": sample.sweep.median if sample.sweep else None,
                    "paper": paper["value"] if paper else None,
                    "paper_difference": paper["difference"] if paper else None,
                    "flags": "; ".join(flags_of(cell)),
                }
            )
    return pd.DataFrame(rows)


def summary_lines(verdicts: Verdicts) -> list[str]:
    """For the terminal: a line a claim, and the hash of what was claimed."""
    width = max(len(judged.claim.id) for judged in verdicts.judged)
    lines = [f"{j.claim.id:{width}}  {j.verdict:17}  {j.claim.title} ({j.reason})" for j in verdicts.judged]
    return [*lines, f"claims.yaml {verdicts.claims.sha256}"]
