"""The verdicts of `mpadam claims`, in lines to show: a claim in words, then its cells with links to their runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.claims.report import FILE
from mpadam.claims.verdicts import VERDICTS
from mpadam.claims.words import interval_text, signed
from mpadam.study.load import ConfigError
from mpadam.training.folder import read_json

_SOURCES = {"paper": "the paper", "referee": "a referee's objection", "ours": "a question of ours"}
_GRADES = {
    "A": "the authors' words",
    "Q": "quoted by a machine referee",
    "D": "in a machine's summary alone",
    "R": "our reading",
}


@dataclass(frozen=True)
class Line:
    """One cell. `cell`: anchor of its runs on the page, empty where it has none."""

    where: str
    verdict: str
    text: str
    reason: str
    cell: str


@dataclass(frozen=True)
class ClaimView:
    """One claim as the page shows it."""

    id: str
    title: str
    statement: str
    verdict: str
    reason: str
    origin: str
    falsified_by: str
    note: str
    lines: tuple[Line, ...]

    @property
    def anchor(self) -> str:
        return f"claim-{self.id}"


@dataclass(frozen=True)
class ClaimsView:
    """All claims, how many have which verdict, and what they were judged by. stale: on other runs than are there."""

    claims: tuple[ClaimView, ...]
    counts: dict[str, int]
    sha256: str
    alpha: float
    directions_only: bool
    pooled: bool
    stale: bool


def read_claims(output: Path, digest: str) -> ClaimsView | None:
    """What claims.json in the folder of tables and figures says; None where there is none yet.

    digest: of the runs as they are (`Collected.digest`). Raises ConfigError if the file is none of `mpadam claims`.
    """
    try:
        return _read(output, digest)
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{output / FILE}: not what mpadam claims writes; delete it and run the workflow again"
        ) from None


def _read(output: Path, digest: str) -> ClaimsView | None:
    content = read_json(output / FILE)
    if content is None:
        return None
    claims = tuple(_view(claim) for claim in content["claims"])
    counts = Counter(claim.verdict for claim in claims)
    return ClaimsView(
        claims,
        {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        content["claims_sha256"],
        content["alpha"],
        content["directions_only"],
        content["pooled"],
        stale=content["runs_digest"] != digest,
    )


def _view(claim: dict[str, Any]) -> ClaimView:
    words = {name: claim[name] for name in ("id", "title", "statement", "verdict", "reason", "falsified_by", "note")}
    return ClaimView(
        **words,
        origin=f"{_SOURCES[claim['source']]}, {_GRADES[claim['grade']]}",
        lines=tuple(_line(cell, claim["unit"]) for cell in claim["cells"]),
    )


def _line(cell: dict[str, Any], unit: str) -> Line:
    return Line(
        f"{cell['where']}, {cell['contrast']}", cell["verdict"], _number(cell, unit), cell["reason"], cell["cell"]
    )


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
