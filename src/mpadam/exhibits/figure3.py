"""Figures 3 and 5 of the paper, and the table behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.tables import Entry, Table, number_text
from mpadam.diagnostics.looks import handles, looks
from mpadam.diagnostics.matrix_fitting.choose import Choice
from mpadam.diagnostics.matrix_fitting.fit import METHODS, SINGLE
from mpadam.diagnostics.matrix_fitting.records import every, final_errors
from mpadam.diagnostics.matrix_fitting.tasks import TASKS
from mpadam.diagnostics.options import MatrixFitting

TOP = 3.0  # of the error axes; what is larger has blown up
_ERROR = "relative error"
_TOO_LARGE = Line2D([], [], color="#444444", marker="x", linestyle="none", label=f"error above {TOP:g}, or infinite")


def figure3(options: MatrixFitting, choices: Sequence[Choice]) -> Picture:
    """Error against updates, a panel a task, at the rates that the paper's protocol gives each method."""
    shown = [choice for choice in choices if choice.as_in_paper]
    with drawing():
        figure = Figure((9.2, 6.2), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for number, (task, axes) in enumerate(zip(TASKS, panels.flat, strict=True)):
            axes.set_title(f"({'abcd'[number]}) {task}", fontsize="medium", loc="left")
            for choice in shown:
                _curve(axes, choice, number, options)
        _error_axis(panels[0, 0], [choice.curve(k, options.seeds) for choice in shown for k in range(len(TASKS))])
        for axes in panels[:, 0]:
            axes.set_ylabel(_ERROR)
        for axes in panels[1]:
            axes.set_xlabel("updates")
        figure.legend(
            handles=handles(choice.sweep.method for choice in shown),
            loc="outside right upper",
            frameon=False,
            handlelength=3.4,
            title=f"bf16 weights, n = {options.seeds} seeds",
            alignment="left",
        )
    return Picture(
        "figure3", "Fitting a matrix stored in bf16 (Figure 3 of the paper)", figure, _caption3(options), _alt()
    )


def _curve(axes: Axes, choice: Choice, task: int, options: MatrixFitting) -> None:
    """Geometric mean over seeds, from the least to the largest as a band."""
    errors = choice.curve(task, options.seeds)[:: every(options)]
    look = looks([choice.sweep.method])[choice.sweep.method]
    updates = range(0, options.steps + 1, every(options))
    # Markers of different methods stand at different updates, or those of equal lines would hide each other.
    spread = max(1, len(updates) // 8)
    first = METHODS.index(choice.sweep.method) * spread // len(METHODS)
    axes.plot(updates, _geometric_mean(errors), markevery=(first, spread), **look)
    low, high = errors.amin(1).tolist(), errors.amax(1).tolist()
    axes.fill_between(updates, low, high, color=look["color"], alpha=0.15, linewidth=0)


def figure5(options: MatrixFitting, choices: Sequence[Choice]) -> Picture:
    """Final error against each rate: a column a task; single branches, then the others along either of their rates."""
    shown = [choice for choice in choices if choice.as_in_paper]
    single = [choice for choice in shown if choice.sweep.method in SINGLE]
    double = [choice for choice in shown if choice.sweep.method not in SINGLE]
    rows = (
        (single, "lr", "only rate"),
        (double, "lr", r"$\eta_a$, at the shared $\eta_m$"),
        (double, "lr_mult", r"$\eta_m$, at the shared $\eta_a$"),
    )
    cut = False
    with drawing():
        figure = Figure((11.5, 7.6), layout="constrained")
        panels = figure.subplots(len(rows), len(TASKS), sharex="row", sharey=True)
        for (methods, rate, label), row in zip(rows, panels, strict=True):
            for number, axes in enumerate(row):
                for choice in methods:
                    cut |= _sweep(axes, choice, number, rate, options)
                axes.set_xscale("log")
                axes.set_xlabel(label)
            row[0].set_ylabel(f"final {_ERROR}")
        _error_axis(panels[0, 0], [choice.sweep.final[:, :, : options.seeds] for choice in shown])
        for number, task in enumerate(TASKS):
            panels[0, number].set_title(f"({'abcd'[number]}) {task}", fontsize="medium", loc="left")
        chosen = Line2D([], [], color="#444444", marker="o", fillstyle="none", markersize=11, linestyle="none")
        chosen.set_label("chosen rate")
        figure.legend(
            handles=[*handles(choice.sweep.method for choice in shown), chosen, *([_TOO_LARGE] if cut else [])],
            loc="outside right upper",
            frameon=False,
            handlelength=3.4,
            title=f"bf16 weights, n = {options.seeds} seeds",
            alignment="left",
        )
    return Picture("figure5", "Rates of the matrix fitting (Figure 5 of the paper)", figure, _caption5(options), _alt())


def _sweep(axes: Axes, choice: Choice, task: int, rate: str, options: MatrixFitting) -> bool:
    """One method along one of its rates, the other (if any) as chosen; returns whether an error was above the cut."""
    chosen = choice.rates(task)
    points = [
        index
        for index, rates in enumerate(choice.sweep.rates)
        if all(value == chosen[name] for name, value in rates.items() if name != rate)
    ]
    x = [choice.sweep.rates[index][rate] for index in points]
    errors = choice.sweep.final[points, task, : options.seeds]
    means = _geometric_mean(errors)
    look = looks([choice.sweep.method])[choice.sweep.method]
    inside = [mean if mean <= TOP else math.nan for mean in means]
    axes.plot(x, inside, **look)
    low, high = errors.amin(1), errors.amax(1).clamp(max=TOP)
    axes.fill_between(x, low.tolist(), high.tolist(), color=look["color"], alpha=0.15, linewidth=0)
    beyond = [at for at, mean in zip(x, means, strict=True) if not mean <= TOP]
    axes.plot(beyond, [TOP] * len(beyond), linestyle="none", marker="x", color=look["color"], markersize=5)
    at = x.index(chosen[rate])
    axes.plot(x[at], inside[at], marker="o", fillstyle="none", markersize=11, color=look["color"])
    return bool(beyond)


def _error_axis(axes: Axes, errors: Sequence[Tensor]) -> None:
    """The error axis, which all panels share, from just below the least error to just above the cut."""
    least = min(error[error > 0].amin().item() for error in errors)
    axes.set_yscale("log")
    axes.set_ylim(0.7 * least, 1.2 * TOP)


def _geometric_mean(errors: Tensor) -> list[float]:
    """Over the last dimension; infinite or NaN where one of the errors is."""
    means: list[float] = errors.double().log().mean(-1).exp().tolist()
    return means


def final_error_table(options: MatrixFitting, choices: Sequence[Choice]) -> Table:
    """Final errors of every method in both ways of choosing its rates, so that like stands beside like."""
    labels = optimizer_styles(METHODS)
    rows = []
    for choice in sorted(choices, key=lambda c: (c.how != "best per task", list(labels).index(c.sweep.method))):
        texts = [choice.how, labels[choice.sweep.method].label]
        for number in range(len(TASKS)):
            texts += [_error_text(choice.final(number, options.seeds)), _rates_text(choice, number)]
        rows.append(tuple(Entry(text) for text in texts))
    return Table(
        name="matrix-fitting",
        title="Matrix fitting in bf16: final errors (behind Figures 3 and 5)",
        caption=(
            "Relative error after the last tenth of the updates: geometric mean (least to largest) over "
            f"n = {options.seeds} seeds, lower is better; and the rates, chosen on other seeds: eta_a, or Madam's only "
            "rate, then eta_m. edge: the best value is the least or greatest tried. The paper compares single branches "
            "at their best rate for each task with M+Adam at one rate for all; here every method is shown both ways."
        ),
        header=("rates", "method", *(h for task in TASKS for h in (task, "at"))),
        rows=tuple(rows),
        headings=2,
        data=final_errors(options, choices),
    )


def _error_text(errors: Tensor) -> str:
    mean = _geometric_mean(errors)
    if not math.isfinite(mean):  # type: ignore[arg-type]  # of a vector it is a number
        return f"div. ({int((~errors.isfinite()).sum())} of {len(errors)})"
    return f"{mean:.2g} ({errors.amin().item():.2g}–{errors.amax().item():.2g})"


def _rates_text(choice: Choice, task: int) -> str:
    open_ends = choice.open_ends[task]
    rates = choice.rates(task).items()
    return ", ".join(number_text(value) + (" (edge)" if name in open_ends else "") for name, value in rates)


def _caption3(options: MatrixFitting) -> str:
    return (
        f"Root mean square of (w - w*) / w* of a {options.size} x {options.size} matrix stored in bf16, against "
        f"updates: geometric mean over n = {options.seeds} seeds, band from the least to the largest. AdamW (additive) "
        "and Madam (multiplicative) take the best rate of each task, the others one rate for all tasks, as in the "
        "paper; rates are chosen on other seeds. See whether one rate serves all four tasks: the forms whose relative "
        "step is the same for every |w| (relative, unnormalized) against those whose step does not grow with |w| "
        "(M+Adam's default form, and the additive twin, which has no multiplicative branch at all) and the one that is "
        "divided by the size of the whole tensor (rho per tensor). Sizes, targets and rates are this project's reading."
    )


def _caption5(options: MatrixFitting) -> str:
    return (
        f"Relative error after the last tenth of {options.steps} updates against the learning rate: geometric mean "
        f"over n = {options.seeds} seeds, band from the least to the largest. Top: AdamW and Madam, whose chosen rate "
        "(circled) may differ from task to task. Middle and bottom: methods with two rates, each along one of them "
        "while the other stays at the value shared by all tasks. See how far the valleys of the four tasks overlap: "
        "only then can one rate serve them all."
    )


def _alt() -> str:
    return (
        "Line plots of relative error for sign errors, zero weights, small weights and large weights, a line for each "
        "of AdamW, Madam, four forms of M+Adam and the additive twin. The table of final errors holds the numbers."
    )
