"""Validation perplexity against the training budget (the paper's Figure 4): a panel for each model, a line for each
optimizer and regime, bars of one standard deviation over seeds where there is more than one. Look at where the lines of
one regime cross or part as the budget grows.
"""

from collections.abc import Sequence

from mpadam.analysis.cells import BASELINE, Cell, cells
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import MAIN, with_runs, without_levels
from mpadam.exhibits.kit.perplexity import Panel, panel_of, perplexity_picture
from mpadam.exhibits.kit.pictures import Picture
from mpadam.exhibits.source import Source

NAME = "figure4"
TITLE = "Perplexity against budget (Figure 4 of the paper)"
NEEDS = "runs"
PLACE = 20
IN_ALL = True
CHECKED = {"figures/figure4.csv": ("val_ppl_mean",)}

#: what the paper's own figure shows: AdamW and M+Adam in these regimes, and one optimizer more in one of them
PAPER_REGIMES = ("bf16-bf16", "bf16-fp8", "fp8-fp8")
PAPER_EXTRA = ("bf16-bf16", "adamw-sr")


def make(source: Source) -> Picture:
    """All lines for `all`; for `all_paper` those that the paper shows, and no others."""
    study = source.collected
    shown = with_runs(study, _in_paper) if study.paths.view else without_levels(study)
    return perplexity_picture(NAME, TITLE, by_model(study, compared(cells(shown.runs))))


def _in_paper(regime: str, optimizer: str) -> bool:
    return (regime in PAPER_REGIMES and optimizer in MAIN) or (regime, optimizer) == PAPER_EXTRA


def compared(found: Sequence[Cell]) -> list[Cell]:
    """Cells of the models that train with more than AdamW, if there are any: elsewhere there is nothing to compare."""
    several = {cell.key.model for cell in found if cell.key.optimizer != BASELINE}
    return [cell for cell in found if cell.key.model in several or not several]


def by_model(study: Collected, found: Sequence[Cell]) -> list[Panel]:
    """A panel for each model; of one budget alone, its regimes lie along the axis."""
    panels = []
    for model in dict.fromkeys(cell.key.model for cell in found):
        own = tuple(cell for cell in found if cell.key.model == model)
        panels.append(panel_of(f"{model} ({_unit(study, model)})", own))
    return panels


def _unit(study: Collected, model: str) -> str:
    shape = study.config.models[model]
    if shape.steps_1x is not None:
        return f"1x = {shape.steps_1x:,} steps"
    return f"1x = {shape.tokens_per_parameter:g} positions per parameter"
