"""The rates that the tuning chose for each model, regime and optimizer, with the same number of trials for all, and
the values that the study gives. A best value without a worse one on both sides is marked *edge*: a better one may
lie there.
"""

import pandas as pd

from mpadam.analysis.collect import Collected
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.texts import number_text
from mpadam.analysis.tunings import Tuning
from mpadam.exhibits.kit.table import Entry, Table, entries, in_order
from mpadam.exhibits.source import Source
from mpadam.optim.names import all_hyperparameters, check_hyperparameters, hyperparameters_of
from mpadam.study.config import StudyConfig

NAME = "hyperparameters"
TITLE = "Hyper-parameters"
NEEDS = "runs"
PLACE = 80
IN_ALL = True
CHECKED = {"tables/hyperparameters.csv": ("value",)}

_HOW = {"fixed": "given", "missing": "missing", "refused": "refused"}


def make(source: Source) -> Table:
    collected = source.collected
    decided = _decided(collected)
    optimizers = optimizer_styles(tuning.key.optimizer for tuning in collected.tunings)
    by_key = {tuning.key: tuning for tuning in collected.tunings}
    tunings = [by_key[key] for key in in_order(by_key)]
    return Table(
        NAME,
        TITLE,
        caption=(
            "Rates that the tuning chose on its own seed and on the half of the validation text that no table reports, "
            "and values that the study gives. trials: those that the study lists, + further ones next to the best. "
            "edge: of the best trial's neighbours with a smaller and a larger value, one was not tried or is not worse "
            "(not bracketed), so a better value may lie there. loss: selection loss of the best trial, nats per token. "
            "The CSV file has every hyper-parameter, defaults too."
        ),
        header=("model", "regime", "optimizer", "trials", "loss", *decided),
        rows=tuple(
            (
                *entries(t.key.model, t.key.regime, optimizers[t.key.optimizer].label),
                *entries(_trials_text(t), _loss_text(t)),
                *(Entry(_value_text(collected.config, t, name)) for name in decided),
            )
            for t in tunings
        ),
        headings=3,
        data=pd.DataFrame([row for tuning in tunings for row in _value_rows(collected.config, tuning)]),
        notes=_tuning_notes(collected),
    )


def _decided(collected: Collected) -> list[str]:
    entries = [collected.config.optimizers[tuning.key.optimizer] for tuning in collected.tunings]
    return [
        name for name in all_hyperparameters() if any(name in entry.values or name in entry.search for entry in entries)
    ]


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
