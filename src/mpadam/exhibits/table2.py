"""The tables: what a reader sees, cell by cell, beside the tidy data that it was made of.

Table 2 of the paper (perplexity by model, regime and optimizer) and the hyper-parameters behind it. A table knows
nothing of file formats: `mpadam.analysis.render` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells, cells_frame
from mpadam.analysis.collect import STATUSES, Collected
from mpadam.analysis.statistics import Estimate, estimate, relative_gains
from mpadam.analysis.style import OPTIMIZERS, optimizer_styles, regime_styles
from mpadam.analysis.tunings import Tuning
from mpadam.optim.hyperparameters import ALL, check_hyperparameters, hyperparameters_of
from mpadam.study.config import StudyConfig
from mpadam.study.grid import TuningKey


@dataclass(frozen=True)
class Entry:
    """One place of a table: its text, and the cell of the study whose runs are behind it."""

    text: str
    cell: CellKey | None = None


@dataclass(frozen=True)
class Table:
    """A table to read.

    headings: how many leading columns name the row; data: the same in tidy form, for the CSV file.
    """

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    headings: int
    data: pd.DataFrame
    notes: tuple[str, ...] = ()


# --- Table 2 ---------------------------------------------------------------------------------------------------------


def table2(collected: Collected) -> Table:
    """Validation perplexity of every cell, the gain over AdamW in the same cell, and the sweep (paper: Table 2)."""
    found = cells(collected.runs)
    by_key = {cell.key: cell for cell in found}
    budgets = sorted({cell.key.budget for cell in found})
    optimizers = optimizer_styles(cell.key.optimizer for cell in found)
    tunings = {tuning.key: tuning for tuning in collected.tunings}
    rows = []
    for row in in_order(TuningKey(cell.key.model, cell.key.regime, cell.key.optimizer) for cell in found):
        entries = [Entry(row.model), Entry(row.regime), Entry(optimizers[row.optimizer].label)]
        for budget in budgets:
            cell = by_key.get(CellKey(row.model, budget, row.regime, row.optimizer))
            key = cell.key if cell else None
            entries += [Entry(perplexity_text(cell), key), Entry(gain_text(cell), key)]
        rows.append((*entries, *map(Entry, _sweep_texts(tunings.get(row)))))
    budget_header = (h for b in budgets for h in (f"{b}x perplexity", f"{b}x gain"))
    return Table(
        name="table2",
        title="Validation perplexity (Table 2 of the paper)",
        caption=_table2_caption(collected.config),
        header=("model", "regime", "optimizer", *budget_header, "sweep best", "sweep median"),
        rows=tuple(rows),
        headings=3,
        data=_table2_data(found, tunings),
        notes=_table2_notes(collected),
    )


def _table2_caption(config: StudyConfig) -> str:
    share = config.tuning.steps_fraction
    trials = f"{config.tuning.budget}x" + ("" if share == 1 else f", {share:.0%} of a run's steps")
    return (
        "Lower is better. Regimes are weights-compute; those with fp32 weights are the reference. Mean ± standard "
        "deviation over seeds, n runs; at n = 1 there is no spread. gain: relative reduction of perplexity against "
        f"{OPTIMIZERS[BASELINE].label} in the same model, regime and budget, mean over the seeds that both have. A "
        "cell with a diverged run (div.) has no mean: what survived would flatter it. sweep: best and median of the "
        f"tuning's trials ({trials}), on the half of the validation text that rates are chosen on; a diverged trial "
        "counts as infinite; – where rates are given or another's. The paper reports the best of its sweep."
    )


def _sweep_texts(tuning: Tuning | None) -> tuple[str, str]:
    if tuning is not None and tuning.status in ("missing", "refused"):
        return tuning.status, tuning.status
    if tuning is None or (sweep := tuning.sweep) is None:
        return "–", "–"
    best, median = (f"{v:.2f}" if math.isfinite(v) else "div." for v in (sweep.best, sweep.median))
    return best, f"{median} (n={sweep.n})"


def _table2_data(found: list[Cell], tunings: Mapping[TuningKey, Tuning]) -> pd.DataFrame:
    """The cells, and beside each the sweep of its own tuning."""
    frame = cells_frame(found)
    keys = [TuningKey(cell.key.model, cell.key.regime, cell.key.optimizer) for cell in found]
    sweeps = [tunings[key].sweep if key in tunings else None for key in keys]
    frame["sweep_n"] = [sweep.n if sweep else 0 for sweep in sweeps]
    for name in ("best", "median"):
        values = [getattr(sweep, name) if sweep else math.nan for sweep in sweeps]
        frame[f"sweep_{name}"] = [value if math.isfinite(value) else None for value in values]
    return frame


def in_order(keys: Iterable[TuningKey]) -> list[TuningKey]:
    """Without duplicates; models as the study has them, regimes and optimizers in the order of the style map."""
    keys = list(dict.fromkeys(keys))
    models = list(dict.fromkeys(key.model for key in keys))
    regimes = list(regime_styles(key.regime for key in keys))
    optimizers = list(optimizer_styles(key.optimizer for key in keys))
    return sorted(
        keys,
        key=lambda k: (models.index(k.model), regimes.index(k.regime), optimizers.index(k.optimizer)),
    )


def perplexity_text(cell: Cell | None) -> str:
    """`27.31 ± 0.42 (n=2)`, `27.31 (n=1 of 2)`, `div. (1 of 2)`, `missing (0 of 2)`, or nothing where none is asked."""
    if cell is None:
        return ""
    if cell.diverged:
        return f"div. ({len(cell.diverged)} of {cell.asked})"
    refused = f", {len(cell.refused)} refused" if cell.refused else ""
    if cell.perplexity is None:
        return f"missing (0 of {cell.asked}{refused})"
    n = cell.perplexity.n
    return f"{_mean_and_spread(cell.perplexity)} (n={n}{f' of {cell.asked}' if n < cell.asked else ''}{refused})"


def _mean_and_spread(found: Estimate) -> str:
    return f"{found.mean:.2f}" + ("" if found.sd is None else f" ± {found.sd:.2f}")


def gain_text(cell: Cell | None) -> str:
    """`+3.2%`, with the number of pairs where it is smaller than the number of runs; a dash where there is none."""
    if cell is None:
        return ""
    if cell.gain is None:
        return "div." if cell.gain_diverged else "–"
    return percent_text(cell.gain, cell.asked)


def percent_text(gain: Estimate, asked: int) -> str:
    """`+3.2%`, with the number of pairs where it is smaller than the number of runs."""
    return f"{100 * gain.mean:+.1f}%" + (f" (n={gain.n})" if gain.n < asked else "")


def gain_between(baseline: Cell | None, other: Cell | None) -> Estimate | None:
    """Relative gain of one cell over another at the seeds that both have; None where a run of either diverged."""
    if baseline is None or other is None or baseline.diverged or other.diverged:
        return None
    gains = relative_gains(baseline.completed, other.completed)
    return estimate(gains) if gains else None


def between_text(baseline: Cell | None, other: Cell | None) -> str:
    """The gain of one cell over another as text: `div.` where a run diverged, a dash where none pair up."""
    if baseline is None or other is None:
        return ""
    gain = gain_between(baseline, other)
    if gain is None:
        return "div." if baseline.diverged or other.diverged else "–"
    return percent_text(gain, other.asked)


def _table2_notes(collected: Collected) -> tuple[str, ...]:
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


# --- hyper-parameters ------------------------------------------------------------------------------------------------

_HOW = {"fixed": "given", "missing": "missing", "refused": "refused"}


def hyperparameters(collected: Collected) -> Table:
    """The hyper-parameters of every (model, regime, optimizer), and how they were found."""
    decided = _decided(collected)
    optimizers = optimizer_styles(tuning.key.optimizer for tuning in collected.tunings)
    by_key = {tuning.key: tuning for tuning in collected.tunings}
    tunings = [by_key[key] for key in in_order(by_key)]
    return Table(
        name="hyperparameters",
        title="Hyper-parameters",
        caption=(
            "Rates that the tuning chose on its own seed and on the half of the validation text that no table reports, "
            "and values that the study gives. trials: those that the study lists, + further ones beside the best. "
            "edge: of the best trial's neighbours with a smaller and a larger value, one was not tried or is not worse "
            "(not bracketed), so a better value may lie there. loss: selection loss of the best trial, nats a token. "
            "The CSV file has every hyper-parameter, defaults too."
        ),
        header=("model", "regime", "optimizer", "trials", "loss", *decided),
        rows=tuple(
            (
                *(Entry(text) for text in (t.key.model, t.key.regime, optimizers[t.key.optimizer].label)),
                Entry(_trials_text(t)),
                Entry(_loss_text(t)),
                *(Entry(_value_text(collected.config, t, name)) for name in decided),
            )
            for t in tunings
        ),
        headings=3,
        data=pd.DataFrame([row for tuning in tunings for row in _value_rows(collected.config, tuning)]),
        notes=_tuning_notes(collected),
    )


def _decided(collected: Collected) -> list[str]:
    """Hyper-parameters that the study gives or searches for any of its optimizers."""
    entries = [collected.config.optimizers[tuning.key.optimizer] for tuning in collected.tunings]
    return [name for name in ALL if any(name in entry.values or name in entry.search for entry in entries)]


def _trials_text(tuning: Tuning) -> str:
    if not tuning.trials:
        return _HOW[tuning.status]
    diverged = sum(trial["status"] != "completed" for trial in tuning.trials)
    further = len(tuning.trials) - tuning.listed
    return f"{tuning.listed}" + (f" + {further}" if further else "") + (f" ({diverged} div.)" if diverged else "")


def _loss_text(tuning: Tuning) -> str:
    if tuning.status != "selected" or tuning.best is None:
        return "all div." if tuning.status == "diverged" else ""
    return f"{tuning.trials[tuning.best]['val_loss']:.3f}"


def _value_text(config: StudyConfig, tuning: Tuning, name: str) -> str:
    """The value in force, `(edge)` if it is not bracketed, `(default)` if nobody chose it; empty if not taken."""
    taken = hyperparameters_of(config.optimizer_name(tuning.key.optimizer))
    if name in tuning.values:
        return number_text(tuning.values[name]) + ("" if tuning.bracketed.get(name, True) else " (edge)")
    if name not in taken:
        return ""
    unknown = tuning.status in ("missing", "refused") and name in config.optimizers[tuning.key.optimizer].search
    return "?" if unknown else f"{number_text(taken[name].default)} (default)"


def number_text(value: float | None) -> str:
    """Short and exact enough to type again: 8e-5, 1.6e-4, 0.003, none."""
    if value is None:
        return "none"
    text = f"{value:.6g}"
    if 0 < abs(value) < 1e-3 and "e" not in text:
        mantissa, exponent = f"{value:.5e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    return text.replace("e-0", "e-")


def _value_rows(config: StudyConfig, tuning: Tuning) -> list[dict[str, object]]:
    """A row a hyper-parameter, defaults too; none where the choice is not known."""
    if tuning.status in ("missing", "refused"):
        return [{**vars(tuning.key), "hyperparameter": "", "value": None, "from": tuning.status, "bracketed": ""}]
    name = config.optimizer_name(tuning.key.optimizer)
    rows = []
    for key, value in check_hyperparameters(name, tuning.values).items():
        source = "selected" if key in tuning.selected else "given" if key in tuning.fixed else "default"
        bracketed = {True: "yes", False: "no"}.get(tuning.bracketed.get(key), "")  # type: ignore[arg-type]
        rows.append({**vars(tuning.key), "hyperparameter": key, "value": value, "from": source, "bracketed": bracketed})
    return rows


def _tuning_notes(collected: Collected) -> tuple[str, ...]:
    told = []
    counts = {tuning.listed for tuning in collected.tunings if tuning.trials}
    if len(counts) > 1:
        told.append(f"Unequal tuning: between {min(counts)} and {max(counts)} trials; compare with care.")
    transfer = collected.config.tuning.transfer
    for axis, takers in (("model", transfer.models), ("regime", transfer.regimes), ("optimizer", transfer.optimizers)):
        used = set(collected.runs[axis])
        shown = {
            name: source
            for name, source in sorted(takers.items())
            if name in used and not name.startswith(f"{source}@")
        }
        for source in dict.fromkeys(shown.values()):
            names = [name for name in shown if shown[name] == source]
            verb = "takes" if len(names) == 1 else "take"
            told.append(f"{', '.join(names)} {verb} the values that were chosen for {source}.")
    if any("@" in name for name in set(collected.runs["optimizer"]) & set(transfer.optimizers)):
        told.append("Levels of ablations take the values of what they change; the table of ablations lists them.")
    return tuple(told)
