"""What a README says of a study's results, made of its claims.json, so that no sentence says more than the data do.

python -m mpadam.claims.sentences results/example/pilot/paper                    # print it
python -m mpadam.claims.sentences results/example/pilot/paper --into README.md   # between its two markers
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mpadam.atomic import write_text
from mpadam.claims.report import FILE
from mpadam.claims.verdicts import CONTRADICTED, NOT_BRACKETED, NOT_RUN, NOT_TESTABLE, SUPPORTED, VERDICTS
from mpadam.claims.words import gain_text
from mpadam.study.load import ConfigError
from mpadam.study.run_folder import read_json

BEGIN, END = "<!-- results: mpadam.claims.sentences -->", "<!-- end of results -->"
#: claims that a README tells with their numbers; the others are counted, and the page has them all
TOLD = ("1", "2", "3", "4", "precision", "survival", "a", "c")
BAR = "\\|"  # within a table
_ONE_BY_ONE = 3  # cells of a verdict that are told each
Content = dict[str, Any]


def sentences(content: Content) -> str:
    """Markdown: what was tested, what came out, and what could not be tested here."""
    claims = [claim for claim in content["claims"] if claim["id"] in TOLD and claim["verdict"] != NOT_RUN]
    entries = [(claim["title"], f"**{claim['verdict']}**", _outcome(claim)) for claim in claims]
    rows = [f"| {' | '.join(entry.replace('|', BAR) for entry in row)} |" for row in entries]
    table = "\n".join(["| claim | here | what came out |", "|---|---|---|", *rows])
    before, *after = (
        textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
        for text in (_tested(content), *_untested(content))
    )
    return "\n\n".join([before, table, *after])


def _tested(content: Content) -> str:
    counts = Counter(claim["verdict"] for claim in content["claims"])
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    cells = [cell for claim in content["claims"] for cell in claim["cells"]]
    seeds = sorted({cell["n"] for cell in cells if cell["budget"] is not None and cell["n"]})
    paired = f" {_span([str(n) for n in seeds])} paired seeds," if seeds else ""
    text = (
        f"Of {len(content['claims'])} claims, objections and questions: {told}. Numbers are means over{paired} with "
        "intervals that hold for all cells of a claim together (95%). Gains are in percent of perplexity, positive "
        "where what is named first is better."
    )
    if content["directions_only"]:
        text += " All models are a fraction of the paper's smallest, so these are verdicts about this scale."
    few = sorted({cell["p_sign_flip_least"] for cell in cells if (cell["p_sign_flip_least"] or 0) > 0.05})
    if not few:
        return text
    return (
        f"{text} So few seeds leave an exact sign-flip test no p-value below {few[0]:g}: verdicts rest on Student's t, "
        "which assumes differences that are about normal."
    )


def _outcome(claim: Content) -> str:
    """The cells by verdict, and those that have one by what they show."""
    groups: dict[tuple[str, str], list[Content]] = {}
    for cell in claim["cells"]:
        decided = cell["verdict"] in (SUPPORTED, CONTRADICTED)
        groups.setdefault((cell["verdict"], cell["reason"] if decided else ""), []).append(cell)
    told = sorted(groups.items(), key=lambda group: VERDICTS.index(group[0][0]))
    names = {cell["contrast"] for cell in claim["cells"]}
    what = f"{names.pop()}: " if len(names) == 1 else ""
    return what + ". ".join(_group(claim, verdict, reason, cells) for (verdict, reason), cells in told)


def _group(claim: Content, verdict: str, reason: str, cells: Sequence[Content]) -> str:
    head = f"{verdict} in {len(cells)} cell{'s' if len(cells) > 1 else ''}" + (f" ({reason})" if reason else "")
    known = [cell for cell in cells if cell["mean"] is not None and not cell["diverged"]]
    if verdict == NOT_TESTABLE or not known:
        return head
    if len(cells) <= _ONE_BY_ONE:
        return f"{head}: " + ", ".join(_cell(claim, cell) for cell in cells)
    text, unit = _writer(claim)
    told = _span([text(value) for value in _ends(cell["mean"] for cell in known)])
    intervals = [end for cell in known for end in cell["interval_family"] or ()]
    reach = f" (intervals from {' to '.join(map(text, _ends(intervals)))})" if intervals else ""
    return f"{head}: {told}{reach}{unit}"


def _cell(claim: Content, cell: Content) -> str:
    """`M+Adam over AdamW + SR in nvfp4-bf16 +4.6% (+1.2% to +7.9%)`; the regime alone where one thing is compared."""
    several = len({one["contrast"] for one in claim["cells"]}) > 1
    name = f"{cell['contrast']} in {_place(claim, cell)}" if several else _place(claim, cell)
    if cell["mean"] is None or cell["diverged"]:
        return f"{name} {'div.' if cell['diverged'] else 'no number'}"
    text, unit = _writer(claim)
    interval = f" ({' to '.join(map(text, cell['interval_family']))})" if cell["interval_family"] else ""
    parts = list(cell["parts"].values()) if claim["unit"] == "share" else []
    levels = f", {parts[0]:.1%} against {parts[1]:.1%}" if len(parts) == 2 else ""
    return f"{name} {text(cell['mean'])}{interval}{unit}{levels}"


def _place(claim: Content, cell: Content) -> str:
    """The regime, with model and budget where the claim has several."""
    scales = {(one["model"], one["budget"]) for one in claim["cells"]}
    return f"`{cell['regime'] if cell['regime'] and len(scales) == 1 else cell['where']}`"


def _writer(claim: Content) -> tuple[Callable[[float], str], str]:
    """How a number of the claim is written, and its unit."""
    if claim["unit"].startswith("ln perplexity"):
        return gain_text, ""
    if claim["unit"] == "share":
        return lambda value: f"{100 * value:+.1f}", " points"
    return lambda value: f"{round(value, 4) + 0.0:.3g}", f", {claim['unit']}" if claim["unit"] else ""


def _ends(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)


def _span(texts: Sequence[str]) -> str:
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


# --- what could not be tested ----------------------------------------------------------------------------------------


def _untested(content: Content) -> list[str]:
    """A paragraph for each reason: nothing to remedy, unequal treatment, best rates at an end."""
    cells = [(claim, cell) for claim in content["claims"] for cell in claim["cells"]]
    unequal = [(claim["id"], cell) for claim, cell in cells if cell["verdict"] == NOT_TESTABLE and cell["untestable"]]
    edges = [(claim["id"], cell) for claim, cell in cells if cell["verdict"] == NOT_BRACKETED]
    paragraphs = _costs(next(claim for claim in content["claims"] if claim["id"] == "3"))
    if unequal:
        paragraphs.append(
            f"{_counted(unequal)} have no verdict by the design of the study: one side was tuned and the other took "
            "its rates from elsewhere, trials are shorter than runs, or runs that the claim needs were not asked for."
        )
    if edges:
        rates = dict.fromkeys(edge for _, cell in edges for edge in cell["edges"])
        why = "a best rate has no worse neighbour on one side"
        told = f"{_counted(edges)} have none because {why}: {', '.join(rates)}."
        paragraphs.append(told)
    return paragraphs


def _counted(cells: Sequence[tuple[str, Content]]) -> str:
    ids = list(dict.fromkeys(name for name, _ in cells))
    return f"{len(cells)} cell{'s' if len(cells) > 1 else ''} (claim{'s' if len(ids) > 1 else ''} {', '.join(ids)})"


def _costs(claim: Content) -> list[str]:
    """Where low precision is shown to cost AdamW something, and where not: the premise of claim 3."""
    tested = [c for c in claim["cells"] if c["premise"] and not c["untestable"] and c["verdict"] != NOT_BRACKETED]
    if not tested:
        return []
    shown, hidden = (
        ", ".join(_cost(_place(claim, cell), cell["premise"]) for cell in tested if _is_shown(cell) == wanted)
        for wanted in (True, False)
    )
    return [
        "Claims about precision are tested only where low precision is shown to cost AdamW something, against fp32 "
        f"weights at the same compute, by the 95% interval of the cell alone: {shown or 'nowhere'}."
        + (f" It is not shown in {hidden}." if hidden else "")
    ]


def _is_shown(cell: Content) -> bool:
    return bool(cell["premise"]["interval_95"][0] > 0)


def _cost(regime: str, premise: Content) -> str:
    """`nvfp4-bf16 +10.5% (+7.1% to +14.0%)`: by how much AdamW's perplexity is higher than with fp32 weights."""
    mean, low, high = (f"{math.expm1(value):+.1%}" for value in (premise["mean"], *premise["interval_95"]))
    return f"{regime} {mean} ({low} to {high})"


# --- the file --------------------------------------------------------------------------------------------------------


def between_markers(text: str, block: str) -> str:
    """The text with the block between its markers. Raises ConfigError where it has not both, once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"write the lines  {BEGIN}  and  {END}  once each, where the results are to be")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{rest.partition(END)[2]}"


def read_sentences(folder: Path) -> str:
    """Of the claims.json in the folder of a study's tables and figures."""
    content = read_json(folder / FILE)
    if content is None:
        raise ConfigError(f"{folder / FILE}: not there: run  mpadam claims  first")
    return sentences(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with claims.json")
    parser.add_argument("--into", type=Path, help="file that has both markers")
    args = parser.parse_args()
    block = read_sentences(args.folder)
    if args.into is None:
        print(block)
    else:
        write_text(args.into, between_markers(args.into.read_text(encoding="utf-8"), block))


if __name__ == "__main__":
    main()
