"""One row for each cell of a claim: the paired difference over seeds with its intervals, the verdict and its reason,
the same difference of best and median trials, and what was not equal between the optimizers compared. Fewer than
three seeds give no verdict; the page has the claims in words.
"""

from typing import Any

import pandas as pd

from mpadam.analysis.cells import cell_of
from mpadam.claims.statistics import POWER
from mpadam.claims.verdicts import LEAST_SEEDS
from mpadam.claims.words import interval_text, signed
from mpadam.exhibits.kit.table import Entry, Table, entries
from mpadam.exhibits.source import Source

NAME = "claims"
TITLE = "Claims, cell by cell"
NEEDS = "claims.json"
PLACE = 41
IN_ALL = True

Record = dict[str, Any]
HEADER = (
    *("claim", "comparison", "where", "n", "difference", "95% interval", "family interval", "p", "exact p"),
    *("verdict", "why", "sweep best", "sweep median", "paper", "ours - paper", "flags"),
)
SCALE = (
    "Every model of this study is a fraction of the paper's smallest: its verdicts are about these models, and a "
    "direction at most for the paper's."
)


def make(source: Source) -> Table:
    claims = source.record(NEEDS)
    return Table(
        NAME,
        TITLE,
        caption=_caption(claims),
        header=HEADER,
        rows=tuple(_row(claim, cell) for claim in claims["claims"] for cell in claim["cells"]),
        headings=3,
        data=pd.DataFrame([tidy(claim, cell) for claim in claims["claims"] for cell in claim["cells"]]),
        notes=_notes(claims),
    )


def _row(claim: Record, cell: Record) -> tuple[Entry, ...]:
    sweep, paper, runs = cell["sweep"] or {}, cell["paper"] or {}, cell_of(cell["cell"])
    mean = "div." if cell["diverged"] else signed(cell["mean"])
    intervals = ["" if cell["diverged"] else interval_text(cell[f"interval_{kind}"]) for kind in ("95", "family")]
    return (
        *entries(claim["id"], cell["contrast"], cell["where"]),
        *entries("exact" if cell["exact"] else f"{cell['n']}", mean, cell=runs),
        *entries(*intervals, _p_text(cell["p_holm"]), _p_text(cell["p_sign_flip"]), cell["verdict"], cell["reason"]),
        *entries(*(signed(found) for found in (sweep.get("best"), sweep.get("median")))),
        *entries(*(signed(found) for found in (paper.get("value"), paper.get("difference"))), _flags(cell)),
    )


def _p_text(p: float | None) -> str:
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _flags(cell: Record) -> str:
    lost = [f"{'+'.join(entries)} diverged at seed {seed}" for seed, entries in cell["diverged"].items()]
    return "; ".join([*lost, *cell["flags"]])


def tidy(claim: Record, cell: Record) -> Record:
    """The cell with a column per number; a cell with a diverged run has no mean. The figure is drawn from it too."""
    sweep, paper = cell["sweep"] or {}, cell["paper"] or {}
    known = {} if cell["diverged"] else cell
    low, high = known.get("interval_95") or (None, None)
    family_low, family_high = known.get("interval_family") or (None, None)
    return {
        "claim": claim["id"],
        "claim_verdict": claim["verdict"],
        **{name: cell[name] for name in ("contrast", "where", "model", "budget", "regime")},
        **{name: claim[name] for name in ("unit", "threshold")},
        **{name: cell[name] for name in ("verdict", "reason", "n")},
        **{name: known.get(name) for name in ("mean", "sd")},
        **{"low": low, "high": high, "family_low": family_low, "family_high": family_high},
        **{name: cell[name] for name in ("p", "p_holm", "p_sign_flip", "seeds_needed")},
        "diverged": sum(map(len, cell["diverged"].values())),
        "missing": len(cell["missing"]),
        **{f"sweep_{name}": sweep.get(name) for name in ("best", "median")},
        "paper": paper.get("value"),
        "paper_difference": paper.get("difference"),
        "flags": _flags(cell),
    }


def _caption(claims: Record) -> str:
    variance = "one for the cells of a family, the largest" if claims["pooled"] else "of each cell's own"
    return (
        "One row for each cell of a claim (its number, and its sentence, are above). difference: mean over paired "
        "seeds, positive in favour of the first; in ln perplexity unless the claim says otherwise. Intervals are "
        f"Student's for that mean, with a standard deviation {variance}; the family's hold for all of its cells "
        f"together. p: two-sided, of the claim's threshold, after Holm; a verdict needs {claims['alpha']:g} and "
        f"{LEAST_SEEDS} seeds. exact p: of the same threshold and the cell alone, by flipping the signs of the "
        "differences in all ways; it assumes no normal distribution and decides no verdict. not testable here: low "
        "precision is not shown to cost AdamW anything, or one side took its rates from elsewhere and the other was "
        "tuned. div.: a run diverged; it counts as one that has learned nothing, and there is no mean. sweep: the same "
        "difference of the tuning's best and median trials. Seeds that would decide: with "
        f"{POWER:.0%} power, were the truth what is seen. paper: its own number (grade Q) where the study has the "
        "paper's model. flags: what was not equal between the optimizers compared."
    )


def _notes(claims: Record) -> tuple[str, ...]:
    told = [f"The files of the claims have the SHA-256 {claims['claims_sha256']}."]
    if claims["directions_only"]:
        told.append(SCALE)
    tested = [cell for claim in claims["claims"] for cell in claim["cells"] if cell["p_sign_flip"] is not None]
    few = sorted({cell["n"] for cell in tested if cell["n"] < 6})
    told += [f"With {n} seeds an exact p cannot be below {2.0 ** (1 - n):g}; with six it can be 0.03125." for n in few]
    idle = [claim["id"] for claim in claims["claims"] if not claim["cells"]]
    if idle:
        told.append(f"Without a cell in this study: {', '.join(idle)}.")
    return tuple(told)
