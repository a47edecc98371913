"""The verdicts of `mpadam claims`, in lines to show: a claim in words, then its cells with links to their runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from mpadam.claims.report import FILE
from mpadam.claims.verdicts import VERDICTS
from mpadam.claims.words import interval_text, signed
from mpadam.study.load import ConfigError
from mpadam.study.run_folder import read_json

_SOURCES = {"paper": "the paper", "referee": "a referee's objection", "ours": "a question of ours"}
_GRADES = {
    "A": "the authors' words",
    "Q": "quoted by a machine referee",
    "D": "in a machine's summary alone",
    "R": "our reading",
}


#: of a claim, shown as they are
_WORDS = {"id", "title", "statement", "verdict", "reason", "falsified_by", "note"}


def read_claims(output: Path, digest: str) -> dict[str, Any] | None:
    """What claims.json in the folder of tables and figures says; None where there is none yet.

    Added are `counts` of verdicts, `stale` (they are about other runs than are there), and for each claim its `origin`
    and its cells as `lines`. digest: of the runs as they are (`Collected.digest`).
    Raises ConfigError if the file is none of `mpadam claims`.
    """
    if (content := read_json(output / FILE)) is None:
        return None
    try:
        counts = Counter(claim["verdict"] for claim in content["claims"])
        return content | {
            "claims": [_claim(claim) for claim in content["claims"]],
            "counts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
            "stale": content["runs_digest"] != digest,
        }
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{output / FILE}: not what mpadam claims writes; delete it and run the workflow again"
        ) from None


def _claim(claim: dict[str, Any]) -> dict[str, Any]:
    if lacking := _WORDS - claim.keys():
        raise KeyError(min(lacking))
    origin = f"{_SOURCES[claim['source']]}, {_GRADES[claim['grade']]}"
    return claim | {"origin": origin, "lines": [_line(cell, claim["unit"]) for cell in claim["cells"]]}


def _line(cell: dict[str, Any], unit: str) -> dict[str, str]:
    """`cell`: anchor of its runs on the page, empty where it has none."""
    shown = {name: cell[name] for name in ("verdict", "reason", "cell")}
    return shown | {"where": f"{cell['where']}, {cell['contrast']}", "text": _number(cell, unit)}


def _number(cell: dict[str, Any], unit: str) -> str:
    """`+0.0123 (+0.0100 to +0.0146) ln perplexity, n = 5, exact p 0.062 (the least with n = 5)`.

    A cell with a diverged run has no mean.
    """
    if cell["diverged"]:
        return f"div., n = {cell['n']}"
    if cell["mean"] is None:
        return ""
    interval = f" ({interval_text(cell['interval_95'])})" if cell["interval_95"] else ""
    seeds = "" if cell["exact"] else f", n = {cell['n']}"
    return f"{signed(cell['mean'])}{interval} {unit}{seeds}{_exact_p(cell)}"


def _exact_p(cell: dict[str, Any]) -> str:
    p, least = cell["p_sign_flip"], cell["p_sign_flip_least"]
    if p is None:
        return ""
    return f", exact p {p:.2g}" + (f" (the least that n = {cell['n']} allows)" if p == least > 0.05 else "")
