"""The verdicts of `mpadam claims`, ready to be shown: claims in words with a strip of cells, and a row per cell."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.claims.examine import FILE
from mpadam.claims.outcome import (
    ABSENT,
    EDGE,
    FAILS,
    HOLDS,
    IDLE,
    OPEN,
    UNEQUAL,
    Outcome,
    costs,
    how,
    numbers,
    outcomes,
)
from mpadam.study.load import ConfigError
from mpadam.study.run_folder import read_json

#: source of a claim -> the group that it is in, and where it comes from
_GROUPS = {
    "paper": ("The paper's claims", "the paper"),
    "referee": ("A referee's objections", "a referee's objection"),
    "ours": ("Our own questions", "a question of ours"),
}
_GRADES = {
    "A": "the authors' words",
    "Q": "quoted by a machine referee",
    "D": "in a machine's summary alone",
    "R": "our reading",
}
#: kind of a cell -> its sign in a strip, and what it means
KEY = {
    HOLDS: ("+", "shown to lie on the claimed side"),
    FAILS: ("×", "shown to lie on the other side of the least difference that matters"),
    OPEN: ("?", "the interval includes that difference, or there are too few seeds"),
    IDLE: ("0", "AdamW is not shown to lose anything there (or there is no gain to keep), so nothing can be tested"),
    UNEQUAL: ("≠", "the rates of the optimizers compared were not chosen alike"),
    EDGE: ("|", "a best rate has no worse neighbour on one side"),
    ABSENT: ("·", "no runs to compare"),
}
#: of a claim, shown as they are
_WORDS = {"id", "title", "statement", "verdict", "reason", "falsified_by", "note"}


@dataclass(frozen=True)
class Row:
    """A cell. cell: anchor of its runs on the page, empty where it has none. p: with the number of seeds."""

    outcome: Outcome
    sign: str
    comparison: str
    where: str
    cell: str
    p: str
    why: str

    @property
    def name(self) -> str:
        return f"{self.where}, {self.comparison}: {self.outcome.kind} {self.outcome.effect}".strip()


def read_claims(output: Path, digest: str) -> dict[str, Any] | None:
    """What claims.json in the folder of tables and figures says; None where there is none yet.

    Added are `groups` of claims by where they come from, each claim with its outcome in words and its cells as `rows`,
    `key` of what squares mean, and `stale` (they are about other runs than are there).
    digest: of the runs as they are (`Collected.digest`).
    Raises ConfigError if the file is none of `mpadam claims`.
    """
    if (content := read_json(output / FILE)) is None:
        return None
    try:
        known = costs(content)
        groups: dict[str, list[dict[str, Any]]] = {}
        for claim in content["claims"]:
            groups.setdefault(_GROUPS[claim["source"]][0], []).append(_claim(claim, outcomes(claim, known)))
        seen = {row.outcome.kind for group in groups.values() for claim in group for row in claim["rows"]}
        key = [(sign, kind, meaning) for kind, (sign, meaning) in KEY.items() if kind in seen]
        return content | {"groups": groups, "key": key, "stale": content["runs_digest"] != digest}
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{output / FILE}: not what mpadam claims writes; delete it and run the workflow again"
        ) from None


def _claim(claim: dict[str, Any], found: list[Outcome]) -> dict[str, Any]:
    if lacking := _WORDS - claim.keys():
        raise KeyError(min(lacking))
    kinds = [outcome.kind for outcome in found]
    return claim | {
        "name": (title := claim["title"].removeprefix("Objection: "))[:1].upper() + title[1:],
        "origin": f"{_GROUPS[claim['source']][1]}, {_GRADES[claim['grade']]}",
        "how": how(claim, kinds),
        "numbers": numbers(claim, kinds).replace("`", ""),
        "rows": [_row(cell, outcome) for cell, outcome in zip(claim["cells"], found, strict=True)],
    }


def _row(cell: dict[str, Any], outcome: Outcome) -> Row:
    lost = [f"{'+'.join(entries)} diverged at seed {seed}" for seed, entries in cell["diverged"].items()]
    paper = [f"the paper's perplexities: {p['adamw']} and {p['m_plus_adam']}"] if (p := cell["paper"]) else []
    lost += [flag for flag in cell["flags"] if "diverged" in flag]  # of a premise
    why = "; ".join(filter(None, [outcome.why, *lost, *paper]))
    return Row(outcome, KEY[outcome.kind][0], cell["contrast"], cell["where"], cell["cell"], _p(cell), why)


def _p(cell: dict[str, Any]) -> str:
    """`0.062 (n = 5, the least)`: of the exact test, and whether so few seeds allow a smaller one."""
    seeds = "" if cell["exact"] or not cell["n"] else f"n = {cell['n']}"
    p, least = cell["p_sign_flip"], cell["p_sign_flip_least"]
    if p is None:
        return seeds
    return f"{p:.2g} ({seeds}{', the least' if p == least > 0.05 else ''})"
