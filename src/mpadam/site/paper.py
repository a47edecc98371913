"""The paper's own numbers, with their grade, beside those of the study's runs where they measure the same thing.

A study at another scale has nothing to set beside them but the direction of its own differences, and that is what it
shows.
"""

from dataclasses import dataclass

from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD
from mpadam.analysis.texts import gain_text, perplexity_text
from mpadam.claims.reported import BUDGET, REPORTED, Line, same_model
from mpadam.site.gains import with_interval


@dataclass(frozen=True)
class Beside:
    """A line of the paper and what this study has. A cell without runs of that model is None.

    direction: which way the gains of this study's other cells in the same regime point.
    """

    reported: Line
    adamw: tuple[str, str] | None
    m_plus_adam: tuple[str, str] | None
    gain: tuple[str, str] | None
    direction: str


def beside_the_paper(collected: Collected) -> list[Beside]:
    found = {cell.key: cell for cell in cells(collected.runs)}
    return [_beside(collected, reported, found) for reported in REPORTED]


def _beside(collected: Collected, reported: Line, found: dict[CellKey, Cell]) -> Beside:
    same = same_model(collected, reported.model)
    adamw, method = (
        found.get(CellKey(reported.model, BUDGET, reported.regime, entry)) if same else None
        for entry in (BASELINE, METHOD)
    )
    than = CellKey(reported.model, BUDGET, reported.regime, BASELINE)
    return Beside(
        reported,
        (perplexity_text(adamw), adamw.key.folder) if adamw else None,
        (perplexity_text(method), method.key.folder) if method else None,
        (with_interval(found, than, method.key, gain_text(method)), method.key.folder) if method else None,
        _direction([cell for cell in found.values() if cell is not method], reported.regime),
    )


def _direction(found: list[Cell], regime: str) -> str:
    asked = [cell for cell in found if (cell.key.regime, cell.key.optimizer) == (regime, METHOD)]
    gains = [cell.gain.mean for cell in asked if cell.gain is not None]
    if not asked:
        return "none of its cells"
    if not gains:
        return "no pair of runs yet"
    return f"lower in {sum(gain > 0 for gain in gains)} of {len(gains)}"
