"""What came of a claim, in words, from its record in claims.json: in how many cells it holds or fails, and by how much.

Effects are in percent or factors, with their interval: `+2.4% (-1.2 to +6.1)`. Logarithms stay in the files.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpadam.claims.data import UNITS
from mpadam.claims.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_BRACKETED, NOT_RUN, NOT_TESTABLE, SUPPORTED
from mpadam.claims.words import COST, GAIN, Writer, writer

Record = dict[str, Any]
Costs = Mapping[tuple[str, int, str], Record]
KINDS = HOLDS, FAILS, OPEN, IDLE, UNEQUAL, EDGE, ABSENT = (
    *("holds", "fails", "undecided", "nothing to recover", "not on equal terms", "best rate at an end", "not run"),
)
_OF_VERDICTS = {SUPPORTED: HOLDS, CONTRADICTED: FAILS, INCONCLUSIVE: OPEN, NOT_BRACKETED: EDGE, NOT_RUN: ABSENT}
_ONE_BY_ONE = 3  # cells of a kind that are told each


@dataclass(frozen=True)
class Outcome:
    """A cell: what came out, its effect and interval (of the cell alone, and of all of the claim) in words, and why."""

    kind: str
    effect: str
    family: str
    why: str


def costs(content: Record) -> Costs:
    """(model, budget, regime) -> what low precision costs AdamW there: the premise of claim 3, where it is tested."""
    cells: list[Record] = next((claim["cells"] for claim in content["claims"] if claim["id"] == "3"), [])
    return {(c["model"], c["budget"], c["regime"]): c["premise"] for c in cells if c["premise"]}


def outcomes(claim: Record, known: Costs) -> list[Outcome]:
    return [Outcome(kind(claim, cell, known), *effects(claim, cell), why(claim, cell)) for cell in claim["cells"]]


def kind(claim: Record, cell: Record, known: Costs) -> str:
    """One of KINDS. Where AdamW is not shown to lose anything there is no gap to close, and M+Adam fails at nothing."""
    if cell["verdict"] == NOT_TESTABLE:
        return UNEQUAL if cell["untestable"] else IDLE
    if cell["verdict"] == CONTRADICTED and claim["source"] == "paper" and claim["unit"] == UNITS["perplexity"]:
        premise = known.get((cell["model"], cell["budget"], cell["regime"]))
        return IDLE if premise and not is_shown(premise) else FAILS
    return _OF_VERDICTS[cell["verdict"]]


def is_shown(premise: Record) -> bool:
    """By the 95% interval of the cell alone."""
    return bool(premise["interval_95"][0] > 0)


def how(claim: Record, kinds: Sequence[str]) -> str:
    """`fails in 2 of 6 cells; 4 undecided`: what decided comes first."""
    if not kinds:
        return "not run: the study has no such runs or measurements"
    counts = Counter(kinds)
    first = _OF_VERDICTS.get(claim["verdict"], "")
    first = first if first in counts else max(counts, key=lambda one: (counts[one], -KINDS.index(one)))
    n, size = counts[first], len(kinds)
    told = [f"{first} in " + (f"{n} of {size} cells" if n < size else f"all {size} cells" if n > 1 else "its one cell")]
    told += [
        f"{one} in {counts[one]}" if one in (HOLDS, FAILS, IDLE, EDGE) else f"{counts[one]} {one}"
        for one in KINDS
        if one != first and counts[one]
    ]
    return "; ".join(told)


def effects(claim: Record, cell: Record) -> tuple[str, str]:
    """The effect with the 95% interval of the cell alone, and the interval for all cells of the claim together."""
    if cell["diverged"] or cell["mean"] is None:
        return "div." if cell["diverged"] else "", ""
    family = cell["interval_family"]
    write = writer_of(claim)
    return write.text(cell["mean"], cell["interval_95"]), write.span(family) if family else ""


def writer_of(claim: Record) -> Writer:
    return writer(claim["unit"], of_differences=any(len(cell["parts"]) > 1 for cell in claim["cells"]))


def why(claim: Record, cell: Record) -> str:
    """The reason of a cell without logarithms."""
    premise = cell["premise"]
    if cell["verdict"] == NOT_TESTABLE and not cell["untestable"] and premise:
        text = (COST if "cost" in premise["needs"] else GAIN).text(premise["mean"], premise["interval_95"])
        return f"{premise['needs']} is not shown: {text}"
    if claim["unit"] == UNITS["fit"] and cell["reason"].startswith("shown"):
        return re.sub(
            r"±?(-?\d+(?:\.\d+)?)", lambda found: f"a factor of {math.exp(float(found[1])):.2g}", cell["reason"]
        )
    return str(cell["reason"])


# --- a claim in a sentence -------------------------------------------------------------------------------------------


def numbers(claim: Record, kinds: Sequence[str]) -> str:
    """Effects by what came out, with the interval for all cells of the claim together; each where they are few."""
    groups: dict[str, list[Record]] = {}
    for one, cell in zip(kinds, claim["cells"], strict=True):
        if cell["mean"] is not None and not cell["diverged"] and one in (HOLDS, FAILS, OPEN):
            groups.setdefault(one, []).append(cell)
    told = [f"{one}: {_group(claim, groups[one])}" for one in KINDS if one in groups]
    names = {cell["contrast"] for cell in claim["cells"]}
    what = f"{_sentence(min(names))}. " if len(names) == 1 and told else ""
    return what + _sentence("; ".join(told))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _group(claim: Record, cells: Sequence[Record]) -> str:
    if len(cells) <= _ONE_BY_ONE:
        return ", ".join(_cell(claim, cell) for cell in cells)
    write = writer_of(claim)
    means = [cell["mean"] for cell in cells]
    ends = [end for cell in cells for end in cell["interval_family"] or ()]
    reach = f" (intervals from {write.span((min(ends), max(ends)))})" if ends else ""
    return f"{write.span((min(means), max(means)))}{write.unit}{reach}"


def _cell(claim: Record, cell: Record) -> str:
    """`M+Adam over AdamW + SR in nvfp4-bf16 +4.6% (+1.2 to +7.9)`; the regime alone where one thing is compared."""
    several = len({one["contrast"] for one in claim["cells"]}) > 1
    name = f"{cell['contrast']} in {place(claim, cell)}" if several else place(claim, cell)
    parts = list(cell["parts"].values()) if claim["unit"] == UNITS["probe"] else []
    levels = f", {parts[0]:.1%} against {parts[1]:.1%}" if len(parts) == 2 else ""
    return f"{name} {writer_of(claim).text(cell['mean'], cell['interval_family'])}{levels}"


def place(claim: Record, cell: Record) -> str:
    """The regime, with model and budget where the claim has several."""
    scales = {(one["model"], one["budget"]) for one in claim["cells"]}
    return f"`{cell['regime'] if cell['regime'] and len(scales) == 1 else cell['where']}`"
