"""What a README says of a study's results, made of its claims.json, so that no sentence says more than the data do.

python -m mpadam.claims.sentences results/example/long/paper                    # print it
python -m mpadam.claims.sentences results/example/long/paper --into README.md   # between its two markers
"""

import argparse
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpadam.atomic import write_text
from mpadam.claims.examine import FILE
from mpadam.claims.outcome import Costs, costs, how, is_shown, numbers, outcomes, place
from mpadam.claims.verdicts import NOT_BRACKETED, NOT_RUN, NOT_TESTABLE, VERDICTS
from mpadam.claims.words import COST
from mpadam.study.load import ConfigError
from mpadam.study.run_folder import read_json

BEGIN, END = "<!-- results: mpadam.claims.sentences -->", "<!-- end of results -->"
#: claims that a README tells with their numbers; the others are counted, and the page has them all
TOLD = ("1", "2", "3", "4", "precision", "survival", "a", "c")
BAR = "\\|"  # within a table
Content = dict[str, Any]


def sentences(content: Content) -> str:
    """Markdown: what was tested, what came out, and what could not be tested here."""
    known = costs(content)
    claims = [claim for claim in content["claims"] if claim["id"] in TOLD and claim["verdict"] != NOT_RUN]
    rows = [f"| {' | '.join(entry.replace('|', BAR) for entry in _row(claim, known))} |" for claim in claims]
    table = "\n".join(["| claim | here | effects |", "|---|---|---|", *rows])
    before, *after = (
        textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
        for text in (_tested(content), *_untested(content))
    )
    return "\n\n".join([before, table, *after])


def _row(claim: Content, known: Costs) -> tuple[str, str, str]:
    kinds = [outcome.kind for outcome in outcomes(claim, known)]
    return claim["title"], f"**{how(claim, kinds)}**", numbers(claim, kinds)


def _tested(content: Content) -> str:
    counts = Counter(claim["verdict"] for claim in content["claims"])
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    cells = [cell for claim in content["claims"] if claim["id"] in TOLD for cell in claim["cells"]]
    seeds = sorted({cell["n"] for cell in cells if cell["budget"] is not None and cell["n"]})
    paired = f" {' to '.join(dict.fromkeys((str(seeds[0]), str(seeds[-1]))))} paired seeds," if seeds else ""
    text = (
        f"Of {len(content['claims'])} claims, objections and questions: {told}. A claim about every "
        f"cell is contradicted by one in which it fails. Effects are means over{paired} in percent of perplexity "
        "unless another unit is given, positive where what is named first is better, with intervals that hold for all "
        "cells of a claim together (95%)."
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


# --- what could not be tested ----------------------------------------------------------------------------------------


def _untested(content: Content) -> list[str]:
    """A paragraph for each reason: nothing to remedy, unequal treatment, best rates at an end."""
    cells = [(claim, cell) for claim in content["claims"] for cell in claim["cells"]]
    unequal = [(claim["id"], cell) for claim, cell in cells if cell["verdict"] == NOT_TESTABLE and cell["untestable"]]
    edges = [(claim["id"], cell) for claim, cell in cells if cell["verdict"] == NOT_BRACKETED]
    paragraphs = _costs(next(claim for claim in content["claims"] if claim["id"] == "3"))
    if unequal:
        paragraphs.append(
            f"{_counted(unequal)} no verdict by the design of the study: one side was tuned and the other took "
            "its rates from elsewhere, trials are shorter than runs, or runs that the claim needs were not asked for."
        )
    if edges:
        rates = dict.fromkeys(edge for _, cell in edges for edge in cell["edges"])
        why = "a best rate has no worse neighbour on one side"
        paragraphs.append(f"{_counted(edges)} no verdict because {why}: {', '.join(rates)}.")
    return paragraphs


def _counted(cells: Sequence[tuple[str, Content]]) -> str:
    claims = len({name for name, _ in cells})
    subject = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    return f"{subject} of {claims} claim{'s' if claims > 1 else ''} {'has' if len(cells) == 1 else 'have'}"


def _costs(claim: Content) -> list[str]:
    """Where low precision is shown to cost AdamW something, and where not: the premise of claim 3."""
    tested = [c for c in claim["cells"] if c["premise"] and not c["untestable"] and c["verdict"] != NOT_BRACKETED]
    if not tested:
        return []
    shown, hidden = (
        ", ".join(_cost(claim, cell) for cell in tested if is_shown(cell["premise"]) == wanted)
        for wanted in (True, False)
    )
    return [
        "Claims about precision are tested only where low precision is shown to cost AdamW something, against fp32 "
        f"weights at the same compute, by the 95% interval of the cell alone: {shown or 'nowhere'}."
        + (f" It is not shown in {hidden}: there is nothing to recover there." if hidden else "")
    ]


def _cost(claim: Content, cell: Content) -> str:
    """`nvfp4-bf16 +10.5% (+7.1 to +14.0)`: by how much AdamW's perplexity is higher than with fp32 weights."""
    return f"{place(claim, cell)} {COST.text(cell['premise']['mean'], cell['premise']['interval_95'])}"


# --- the file --------------------------------------------------------------------------------------------------------


def between_markers(text: str, block: str) -> str:
    """The text with the block between its markers. Raises ConfigError where it has not both, once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"write the lines  {BEGIN}  and  {END}  once each, where the results are to be")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{rest.partition(END)[2]}"


def read_sentences(folder: Path) -> str:
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
