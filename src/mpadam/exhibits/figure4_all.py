"""Figure 4 in every regime of the study, a panel for each way to keep weights and model, with AdamW on fp32 weights as
reference. Look at how much of the distance to the reference M+Adam makes up, and whether that grows as weights get
coarser.
"""

from collections.abc import Sequence
from itertools import product

from mpadam.analysis.cells import BASELINE, Cell, cells
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import main_entries
from mpadam.analysis.style import regime_styles
from mpadam.exhibits.figure4 import by_model, compared
from mpadam.exhibits.kit.perplexity import Panel, panel_of, perplexity_picture
from mpadam.exhibits.kit.pictures import Picture
from mpadam.exhibits.source import Source

NAME = "figure4-all"
TITLE = "Perplexity in all regimes"
NEEDS = "runs"
PLACE = 30
CHECKED = {"figures/figure4-all.csv": ("val_ppl_mean",)}
MOST_LINES = 8  # in a panel that a reader can follow


def make(source: Source) -> Picture:
    study = source.collected
    found = compared(cells(main_entries(study).runs))
    shown = by_model(study, found)
    crowded = any(len(panel.lines) > MOST_LINES for panel in shown)
    if crowded:
        shown = _by_masters(study, found)
    return perplexity_picture(NAME, TITLE, shown, about=_ABOUT if crowded else "")


_ABOUT = (
    "A panel for each way to keep weights; AdamW with fp32 weights and the same compute is in each of them, as the "
    "reference: the distance to it is what coarse storage costs. "
)


def _by_masters(study: Collected, found: Sequence[Cell]) -> list[Panel]:
    """A panel for each way to keep weights and model, with AdamW's fp32 lines as reference in each."""
    regimes = study.config.regimes
    order = dict.fromkeys(regimes[name].masters for name in regime_styles(cell.key.regime for cell in found))
    models = dict.fromkeys(cell.key.model for cell in found)
    panels = []
    for masters, model in product((m for m in order if m != "fp32"), models):
        own = [c for c in found if regimes[c.key.regime].masters == masters and c.key.model == model]
        compute = {(regimes[cell.key.regime].compute, cell.key.budget) for cell in own}
        reference = [
            cell
            for cell in found
            if (regimes[cell.key.regime].masters, cell.key.model, cell.key.optimizer) == ("fp32", model, BASELINE)
            and (regimes[cell.key.regime].compute, cell.key.budget) in compute
        ]
        if own:
            panels.append(panel_of(f"{model}, {masters} weights", (*reference, *own)))
    return panels
