"""Ablations: what becomes of M+Adam when one of its values changes, and in its other forms.

A level is an optimizer entry `<base>@<axis><k>` that names what it changes and takes the rest, tuned rates too, from
its base. Forms are entries of their own; the additive twin, M+Adam's control, is one of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mpadam.analysis.cells import Cell, CellKey, cells, cells_frame
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD, axis_of, base_of, is_form, is_level
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.texts import number_text
from mpadam.optim.names import check_hyperparameters
from mpadam.study.config import StudyConfig
from mpadam.study.grid import TuningKey, selection_key

FORM = "form"
Value = float | int | str | None


@dataclass(frozen=True)
class Level:
    """One value of an axis, and its runs. value: None where a bound is switched off; `is_base`: as in the base."""

    value: Value
    label: str
    cell: Cell
    is_base: bool = False


@dataclass(frozen=True)
class Ablation:
    """Everything that was varied around one optimizer in one (model, budget, regime).

    base: its cell, None where the study does not ask for it.  axes: name -> levels, the base's among them where its
    value is known, from the smallest value on; `form` has no base value but its name.
    """

    model: str
    budget: int
    regime: str
    entry: str
    base: Cell | None
    axes: Mapping[str, tuple[Level, ...]]

    @property
    def where(self) -> str:
        return f"{self.model}, {self.budget}x, {self.regime}"


def ablations(collected: Collected) -> list[Ablation]:
    """One for each (model, budget, regime) and base with levels or forms, in the order of the grid."""
    groups: dict[tuple[str, int, str, str], list[Cell]] = {}
    by_key = {cell.key: cell for cell in cells(collected.runs)}
    for key, cell in by_key.items():
        form = METHOD in collected.config.optimizers and is_form(collected.config, key.optimizer)
        if is_level(key.optimizer) or form:
            base = METHOD if form else base_of(key.optimizer)
            groups.setdefault((key.model, key.budget, key.regime, base), []).append(cell)
    found = []
    for where, members in groups.items():
        around = by_key.get(CellKey(*where))
        found.append(Ablation(*where, around, _axes(collected, where, around, members)))
    return found


def _axes(
    collected: Collected, where: tuple[str, int, str, str], base: Cell | None, members: Sequence[Cell]
) -> dict[str, tuple[Level, ...]]:
    config = collected.config
    in_force = _in_force(collected, TuningKey(where[0], where[2], where[3]))
    axes: dict[str, list[Level]] = {}
    for cell in members:
        if not is_level(cell.key.optimizer):
            label = optimizer_styles([cell.key.optimizer])[cell.key.optimizer].label
            axes.setdefault(FORM, []).append(Level(label, label, cell))
            continue
        changed = changed_values(config, cell.key.optimizer)
        axis = next(iter(changed)) if len(changed) == 1 else axis_of(cell.key.optimizer)
        if axis not in axes:
            axes[axis] = []
            if in_force is not None and base is not None:
                axes[axis].append(_level({name: in_force.get(name) for name in changed}, base, is_base=True))
        axes[axis].append(_level(changed, cell))
    return {axis: tuple(levels if axis == FORM else sorted(levels, key=_rank)) for axis, levels in axes.items()}


def changed_values(config: StudyConfig, entry: str) -> dict[str, Value]:
    """What a level sets otherwise than its base's entry does."""
    own, base = config.optimizers[entry], config.optimizers.get(base_of(entry))
    given = {} if base is None else base.values
    changed: dict[str, Value] = {k: v for k, v in own.values.items() if k not in given or given[k] != v}
    if own.optimizer is not None:
        changed["optimizer"] = own.optimizer
    return changed if own.warmup is None else {**changed, "warmup": own.warmup}


def _in_force(collected: Collected, key: TuningKey) -> dict[str, Value] | None:
    """All values of the base, defaults too; None where its tuning is not known."""
    source = selection_key(collected.config, key)
    tuning = next((t for t in collected.tunings if t.key == source), None)
    if key.optimizer not in collected.config.optimizers or tuning is None or tuning.status in ("missing", "refused"):
        return None
    given = {**tuning.selected, **collected.config.optimizers[key.optimizer].values}
    values: dict[str, Value] = dict(check_hyperparameters(collected.config.optimizer_name(key.optimizer), given))
    warmup = collected.config.optimizers[key.optimizer].warmup
    values["warmup"] = collected.config.training.schedule.warmup if warmup is None else warmup
    values["optimizer"] = str(collected.config.optimizer_name(key.optimizer))
    return values


def _level(values: Mapping[str, Value], cell: Cell, *, is_base: bool = False) -> Level:
    label = ", ".join(number_text(value) if not isinstance(value, str) else value for value in values.values())
    return Level(next(iter(values.values())) if len(values) == 1 else label, label, cell, is_base)


def _rank(level: Level) -> tuple[float, str]:
    """Numbers in order; a bound that is switched off comes last, several values at once by their text."""
    value = level.value
    return (math.inf if value is None or isinstance(value, str) else float(value), level.label)


def levels_frame(found: Sequence[Ablation]) -> pd.DataFrame:
    named = [(axis, level) for ablation in found for axis, levels in ablation.axes.items() for level in levels]
    if not named:
        return pd.DataFrame()
    frame = cells_frame(level.cell for _, level in named)
    about = [(axis, level.label, level.is_base) for axis, level in named]
    return pd.concat([pd.DataFrame(about, columns=["axis", "value", "base"]), frame], axis=1)
