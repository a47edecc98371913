"""One value of M+Adam changed at a time, and its other forms: perplexity, and the gain over M+Adam as it is at the same
seeds. *rates* says whether learning rates were chosen for the row or taken from its base.
"""

from mpadam.analysis.ablations import Ablation, Level, ablations, levels_frame
from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.texts import between_text, perplexity_text
from mpadam.exhibits.kit.table import Entry, Table, entries
from mpadam.exhibits.source import Source
from mpadam.study.grid import TuningKey, selection_key

NAME = "ablations"
TITLE = "Ablations of hyper-parameters and forms"
NEEDS = "runs"
PLACE = 71
CHECKED = {"tables/ablations.csv": ("val_ppl_mean",)}


def make(source: Source) -> Table:
    collected = source.collected
    found = ablations(collected)
    rows = [row for ablation in found for row in _rows(collected, ablation)]
    return Table(
        NAME,
        TITLE,
        caption=(
            "Validation perplexity, mean ± standard deviation over seeds, n runs; lower is better. Each row changes "
            "one thing of the optimizer in the second column; * marks the base's own value. against base: "
            "reduction of perplexity, of the mean difference of ln(perplexity) at the seeds that both have, negative "
            "where the change does harm. rates: whether learning rates are the base's or chosen for the row itself. A "
            "cell with a diverged run (div.) has no mean."
        ),
        header=("where", "base", "axis", "value", "perplexity", "against base", "rates"),
        rows=tuple(rows),
        headings=4,
        data=levels_frame(found),
        notes=() if rows else ("The study asks for no level of an ablation.",),
    )


def _rows(collected: Collected, ablation: Ablation) -> list[tuple[Entry, ...]]:
    name = optimizer_styles([ablation.entry])[ablation.entry].label
    rows = []
    for axis, levels in ablation.axes.items():
        for level in levels:
            mark, gain, rates = " *", "", ""
            if not level.is_base:
                mark, gain, rates = "", between_text(ablation.base, level.cell), _rates(collected, ablation, level)
            named = entries(ablation.where, name, axis, level.label + mark)
            rows.append((*named, *entries(perplexity_text(level.cell), gain, cell=level.cell.key), *entries(rates)))
    return rows


def _rates(collected: Collected, ablation: Ablation, level: Level) -> str:
    key = level.cell.key
    source = selection_key(collected.config, TuningKey(key.model, key.regime, key.optimizer))
    if source.optimizer == ablation.entry:
        return "of base"
    return "own" if source.optimizer == key.optimizer else f"of {source.optimizer}"
