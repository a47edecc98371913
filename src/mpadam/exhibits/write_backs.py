"""Stochastic rounding, Kahan summation and ECO against rounding to nearest, for AdamW and M+Adam, in every regime with
weights below fp32 that the study asks for, and AdamW with fp32 weights. The last columns say what M+Adam,
without either, gains over each: negative where the rounding trick does better.
"""

from dataclasses import replace

from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells, cells_frame
from mpadam.analysis.entries import METHOD, feeds_back, fp32_regime, has_write_back, is_level
from mpadam.analysis.style import OPTIMIZERS, optimizer_styles, regime_styles
from mpadam.analysis.texts import between_text, perplexity_text
from mpadam.exhibits.kit.table import Entry, Table, entries
from mpadam.exhibits.source import Source
from mpadam.study.config import StudyConfig

NAME = "write-backs"
TITLE = "Write-backs: alternatives to rounding to nearest"
NEEDS = "runs"
PLACE = 50
CHECKED = {"tables/write-backs.csv": ("val_ppl_mean",)}

Place = tuple[str, int, str]  # model, budget, regime


def make(source: Source) -> Table:
    collected = source.collected
    config = collected.config
    shown = [cell for cell in cells(collected.runs) if _belongs(config, cell.key.optimizer)]
    by_key = {cell.key: cell for cell in shown}
    places = _places(config, shown)
    inside = [cell for cell in shown if cell.key.place in places]
    styles = optimizer_styles(cell.key.optimizer for cell in inside)
    rivals = [entry for entry in styles if entry.startswith(f"{BASELINE}-")]
    rows = []
    for model, budget, regime in places:
        own = {entry: by_key.get(CellKey(model, budget, regime, entry)) for entry in styles}
        reference = by_key.get(CellKey(model, budget, fp32_regime(config, regime), BASELINE))
        method = own.get(METHOD)
        gains = [between_text(own[rival], method) for rival in rivals]
        values = [Entry(perplexity_text(cell), cell.key if cell else None) for cell in (reference, *own.values())]
        rows.append(
            (*entries(model, f"{budget}x", regime), *values, *entries(*gains, cell=method.key if method else None))
        )
    return Table(
        NAME,
        TITLE,
        caption=_CAPTION + (_ECO if any(feeds_back(config, entry) for entry in styles) else ""),
        header=(
            *("model", "budget", "regime", f"{OPTIMIZERS[BASELINE].label}, fp32 weights"),
            *(style.label for style in styles.values()),
            *(f"{OPTIMIZERS[METHOD].label} over {styles[rival].label}" for rival in rivals),
        ),
        rows=tuple(rows),
        headings=3,
        data=cells_frame(inside),
        notes=() if rows else ("The study asks for no optimizer with stochastic rounding or Kahan's carry.",),
    )


_CAPTION = (
    "Validation perplexity, mean ± standard deviation over seeds, n runs; lower is better. SR rounds every weight "
    "stochastically, Kahan keeps what rounding lost in a carry of two bytes per weight; the others round to nearest. "
    "The reference has fp32 weights and the same compute. Last columns: reduction of perplexity by M+Adam, "
    "without either, of the mean difference of ln(perplexity) at the seeds that both have; negative where the rounding "
    "trick does better. A cell with a diverged run (div.) has no mean."
)
_ECO = " ECO adds what rounding lost to the first moment, and takes no memory."


def _belongs(config: StudyConfig, entry: str) -> bool:
    """AdamW and M+Adam in the default form, with any write-back."""
    plain = replace(config.optimizer_name(entry), write_back="nearest")
    return not is_level(entry) and str(plain) in (BASELINE, METHOD)


def _places(config: StudyConfig, shown: list[Cell]) -> list[Place]:
    tried = {cell.key.place for cell in shown if has_write_back(config, cell.key.optimizer)}
    models = list(dict.fromkeys(cell.key.model for cell in shown))
    regimes = list(regime_styles(cell.key.regime for cell in shown))
    return sorted(tried, key=lambda place: (models.index(place[0]), place[1], regimes.index(place[2])))
