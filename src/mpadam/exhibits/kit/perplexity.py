"""Pictures of validation perplexity: a panel per model or way to keep weights, a line per optimizer and regime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes

from mpadam.analysis.cells import Cell, CellKey, cells_frame
from mpadam.analysis.style import Dash, OptimizerStyle, optimizer_styles, regime_styles
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative, lost_text, seeds_text

COLUMNS, HEIGHT = 3, 2.8
Optimizers = Mapping[str, OptimizerStyle]
Regimes = Mapping[str, Dash]


@dataclass(frozen=True)
class Panel:
    """by_regime: regimes, not budgets, along the horizontal axis; for cells of a single budget."""

    title: str
    cells: tuple[Cell, ...]
    by_regime: bool = False

    @property
    def lines(self) -> list[tuple[str, str]]:
        """(regime, optimizer) of each line, in the order of legends."""
        found = dict.fromkeys((cell.key.regime, cell.key.optimizer) for cell in self.cells)
        regimes, optimizers = regime_styles(r for r, _ in found), optimizer_styles(o for _, o in found)
        return [(regime, optimizer) for regime in regimes for optimizer in optimizers if (regime, optimizer) in found]


def panel_of(title: str, cells: Sequence[Cell]) -> Panel:
    """Against the budget, or by regime where there is only one budget, which the title then names."""
    budgets = {cell.key.budget for cell in cells}
    alone = len(budgets) == 1
    return Panel(f"{title}, {min(budgets)}x" if alone else title, tuple(cells), by_regime=alone)


def perplexity_picture(name: str, title: str, shown: Sequence[Panel], *, about: str = "") -> Picture:
    """Means with bars of one standard deviation. A line breaks, and there is no bar, where a cell has no mean.

    about: what the caption opens with.
    """
    found = list({cell.key: cell for panel in shown for cell in panel.cells}.values())
    optimizers = optimizer_styles(cell.key.optimizer for cell in found)
    regimes = regime_styles(cell.key.regime for cell in found)
    figure, axes = kit.panels(len(shown), columns=COLUMNS, height=HEIGHT)
    for place, (ax, panel) in enumerate(zip(axes, shown, strict=False)):
        _draw(ax, panel, optimizers, regimes)
        ax.set(title=panel.title, ylabel="validation perplexity" if place % COLUMNS == 0 else "")
    groups = {"optimizer": kit.optimizer_lines(optimizers)}
    if any(not panel.by_regime for panel in shown):
        groups["weights-compute"] = [kit.line(name, linestyle=dash) for name, dash in regimes.items()]
    if any(cell.diverged for cell in found):
        groups[""] = kit.diverged_entry()
    kit.legend(figure, groups)
    numbers = "The CSV file next to the figure" if any(panel.by_regime for panel in shown) else "Table 2"
    with_value = f"{sum(cell.perplexity is not None for cell in found)} of {len(found)} points have a value"
    alt = alternative("Validation perplexity", [panel.title for panel in shown], numbers, shown=with_value)
    return Picture(name, title, figure, about + _caption(found, shown), alt, cells_frame(found))


def _draw(axes: Axes, panel: Panel, optimizers: Optimizers, regimes: Regimes) -> None:
    frame = _frame(panel)
    if frame["mean"].notna().any():
        path = so.Path(pointsize=5, linewidth=0 if panel.by_regime else 1.3)
        drawn = (
            kit.plot(frame, x="x", y="mean", color="optimizer", marker="optimizer", linestyle="regime")
            .add(path, legend=False)
            .add(so.Range(linestyle="-"), ymin="low", ymax="high", legend=False)
            .scale(**kit.styled(optimizers, linestyle=dict(regimes)))
        )
        kit.draw(drawn, axes)
        kit.few_ticks(axes)
        axes.margins(y=0.12)
    else:
        kit.say(axes, "no completed cell")
    if panel.by_regime:
        names = list(dict.fromkeys(regime for regime, _ in panel.lines))
        axes.set_xlim(-0.5, len(names) - 0.5)
        kit.fixed_ticks(axes, range(len(names)), names, rotation=35)
    else:
        budgets = sorted({cell.key.budget for cell in panel.cells})
        axes.set_xscale("log", base=2)
        axes.set_xlim(budgets[0] / 1.3, budgets[-1] * 1.3)
        kit.fixed_ticks(axes, budgets, [f"{budget}x" for budget in budgets])
        axes.set_xlabel("training budget")
    for optimizer, style in optimizers.items():
        lost = frame[frame["diverged"] & (frame["optimizer"] == optimizer)]
        kit.crosses(axes, lost["x"].tolist(), style.colour)


def _frame(panel: Panel) -> pd.DataFrame:
    """A row per cell: place on the axis, moved sideways so that bars do not hide each other, mean, ends of the bar."""
    lines = panel.lines
    regimes, optimizers = (list(dict.fromkeys(names)) for names in zip(*lines, strict=True))
    step = min(0.06, 0.4 / len(lines))

    def place(key: CellKey) -> float:
        if panel.by_regime:
            aside = optimizers.index(key.optimizer) - (len(optimizers) - 1) / 2
            return regimes.index(key.regime) + 0.22 * aside
        aside = lines.index((key.regime, key.optimizer)) - (len(lines) - 1) / 2
        return key.budget * 2.0 ** (step * aside)

    found = sorted(panel.cells, key=lambda cell: cell.key.budget)
    frame = with_bars(cells_frame(found))
    return frame.assign(x=[place(cell.key) for cell in found], diverged=frame["diverged"] > 0)


def with_bars(frame: pd.DataFrame) -> pd.DataFrame:
    """mean, low, high of a frame of cells: means, and the ends of bars of one standard deviation."""
    mean, sd = (frame[f"val_ppl_{name}"].astype("float64") for name in ("mean", "sd"))
    return frame.assign(mean=mean, low=mean - sd, high=mean + sd)


def _caption(found: Sequence[Cell], shown: Sequence[Panel]) -> str:
    budgets, regimes = (
        "against the training budget, in multiples of the model's 1x, on a logarithmic axis",
        "by regime, weights-compute, at the one budget that was run",
    )
    kinds = {panel.by_regime for panel in shown}
    axis = f"{budgets}, or {regimes}" if len(kinds) > 1 else regimes if kinds == {True} else budgets
    return (
        f"Validation perplexity (lower is better) {axis}; every panel has its own scale. Points are means over seeds "
        f"({seeds_text(found)}), bars one standard deviation, absent at n = 1; points of one place are moved apart "
        f"sideways.{lost_text(found)}"
    )
