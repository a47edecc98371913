"""Validation perplexity by model, regime, optimizer and budget (the paper's Table 2): mean and standard deviation over
seeds, with their number n, and the gain over AdamW at the same seeds. Lower is better. A cell with a diverged run
has no mean.
"""

import math
from collections.abc import Mapping

import pandas as pd

from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells, cells_frame
from mpadam.analysis.collect import STATUSES, Collected
from mpadam.analysis.entries import main_entries, without_levels
from mpadam.analysis.style import OPTIMIZERS, optimizer_styles
from mpadam.analysis.texts import gain_text, perplexity_text
from mpadam.analysis.tunings import Tuning
from mpadam.exhibits.kit.table import Table, entries, in_order
from mpadam.exhibits.source import Source
from mpadam.study.config import StudyConfig
from mpadam.study.grid import TuningKey

NAME = "table2"
TITLE = "Validation perplexity (Table 2 of the paper)"
NEEDS = "runs"
PLACE = 10
IN_ALL = True
CHECKED = {"tables/table2.csv": ("val_ppl_mean", "gain_mean", "sweep_best", "sweep_median")}


def make(source: Source) -> Table:
    study = source.collected
    return table2(main_entries(study) if study.paths.view else without_levels(study))


def table2(collected: Collected) -> Table:
    found = cells(collected.runs)
    by_key = {cell.key: cell for cell in found}
    budgets = sorted({cell.key.budget for cell in found})
    optimizers = optimizer_styles(cell.key.optimizer for cell in found)
    tunings = {tuning.key: tuning for tuning in collected.tunings}
    rows = []
    for row in in_order(TuningKey(cell.key.model, cell.key.regime, cell.key.optimizer) for cell in found):
        places = [*entries(row.model, row.regime, optimizers[row.optimizer].label)]
        for budget in budgets:
            cell = by_key.get(CellKey(row.model, budget, row.regime, row.optimizer))
            places += entries(perplexity_text(cell), gain_text(cell), cell=cell.key if cell else None)
        rows.append((*places, *entries(*_sweep_texts(tunings.get(row)))))
    budget_header = (h for b in budgets for h in (f"{b}x perplexity", f"{b}x gain"))
    return Table(
        NAME,
        TITLE,
        caption=_caption(collected.config),
        header=("model", "regime", "optimizer", *budget_header, "sweep best", "sweep median"),
        rows=tuple(rows),
        headings=3,
        data=_data(found, tunings),
        notes=_notes(collected),
    )


def _caption(config: StudyConfig) -> str:
    share = config.tuning.steps_fraction
    trials = f"{config.tuning.budget}x" + ("" if share == 1 else f", {share:.0%} of a run's steps")
    return (
        "Lower is better. Regimes are weights-compute; those with fp32 weights are the reference. Mean ± standard "
        "deviation over seeds, n runs; at n = 1 there is no spread. gain: reduction of perplexity against "
        f"{OPTIMIZERS[BASELINE].label} in the same model, regime and budget, of the mean difference of "
        "ln(perplexity) over the seeds that both have. A cell with a diverged run (div.) has no mean: what survived "
        f"would flatter it. sweep: best and median of the tuning's trials ({trials}), on the half of the validation "
        "text that rates are chosen on; a diverged trial counts as infinite; – where rates are given or another's. The "
        "paper reports the best of its sweep."
    )


def _sweep_texts(tuning: Tuning | None) -> tuple[str, str]:
    if tuning is not None and tuning.status in ("missing", "refused"):
        return tuning.status, tuning.status
    if tuning is None or (sweep := tuning.sweep) is None:
        return "–", "–"
    best, median = (f"{v:.2f}" if math.isfinite(v) else "div." for v in (sweep.best, sweep.median))
    return best, f"{median} (n={sweep.n})"


def _data(found: list[Cell], tunings: Mapping[TuningKey, Tuning]) -> pd.DataFrame:
    frame = cells_frame(found)
    keys = [TuningKey(cell.key.model, cell.key.regime, cell.key.optimizer) for cell in found]
    sweeps = [tunings[key].sweep if key in tunings else None for key in keys]
    frame["sweep_n"] = [sweep.n if sweep else 0 for sweep in sweeps]
    for name in ("best", "median"):
        values = [getattr(sweep, name) if sweep else math.nan for sweep in sweeps]
        frame[f"sweep_{name}"] = [value if math.isfinite(value) else None for value in values]
    return frame


def _notes(collected: Collected) -> tuple[str, ...]:
    counts = {status: collected.count(status) for status in STATUSES}
    told = [f"{len(collected.runs)} runs asked for: {', '.join(f'{n} {s}' for s, n in counts.items() if n)}."]
    if (entropy := collected.unigram_entropy) is not None and counts["completed"]:
        told.append(
            f"Yardstick: guessing by the frequency of tokens alone has perplexity {math.exp(entropy):.2f}; "
            f"{counts['completed'] - len(collected.above_unigram())} of {counts['completed']} completed runs are below."
        )
    if BASELINE not in set(collected.runs["optimizer"]):
        told.append(f"No gains: the study has no optimizer entry {BASELINE!r}.")
    return tuple(told)
