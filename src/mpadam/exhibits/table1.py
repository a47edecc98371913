"""What each optimizer can do to a stored weight, measured (the paper's Table 1): leave zero, change a sign, let a small
weight grow, and the ``|w|`` from which updates are lost, by format, rounding to nearest, at the reference rates.
"""

from collections.abc import Sequence
from typing import Any

from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.texts import number_text
from mpadam.diagnostics.records import TASKS, tidy_capabilities
from mpadam.exhibits.kit.table import Entry, Table, entries
from mpadam.exhibits.source import Source

NAME = "table1"
TITLE = "What an update can do, measured (Table 1 of the paper)"
NEEDS = "diagnostics/capabilities"
PLACE = 90
CHECKED = {"diagnostics/capabilities/capabilities.csv": ("lost_from",)}

#: one optimizer x write-back x format, a `Capability` as a record; and the options of the measurement
Record = dict[str, Any]
MEASURED = ("leaves zero", "changes sign", "small grows", "lost below |w|", "lost from |w|", "lost between")


def make(source: Source) -> Table:
    options, found = capabilities(source)
    shown = [one for one in found if one["write_back"] == "nearest"]
    return Table(
        NAME,
        TITLE,
        caption=(
            f"{caption(options)} Weights are rounded to nearest. The paper's Table 1 has ticks: Adam escapes zero but "
            "gives no update at large |w|, Madam the reverse, M+Adam both."
        ),
        header=("format", "optimizer", *MEASURED),
        rows=tuple(row(one, options, ("fmt", "optimizer")) for one in shown),
        headings=2,
        data=tidy_capabilities(shown),
        notes=notes(options),
    )


def capabilities(source: Source) -> tuple[Record, list[Record]]:
    kept = source.record(f"{NEEDS}/results.json")
    return kept["options"], kept["capabilities"]


def row(one: Record, options: Record, names: Sequence[str]) -> tuple[Entry, ...]:
    labels = optimizer_styles(options["optimizers"])
    told = [labels[one[name]].label if name == "optimizer" else one[name] for name in names]
    told += [f"> {options['limit']}" if one[task] is None else str(one[task]) for task in TASKS]
    edges = one["edges"]
    if edges["everywhere"]:
        return entries(*told, "all", "all", "")
    gaps = f"{edges['gaps']:.0%}" if edges["gaps"] else "none"
    return entries(*told, _magnitude(edges["below"]), _magnitude(edges["above"]), gaps)


def _magnitude(value: float | None) -> str:
    return "none" if value is None else number_text(float(f"{value:.3g}"))


def caption(options: Record) -> str:
    low, high = options["magnitudes"]
    weight, small = number_text(options["weight"]), number_text(options["small"])
    return (
        f"Updates until a zero weight is not zero, a weight of {weight} that should be -{weight} is negative, and a "
        f"weight of {small} that should be {weight} is half of it. Then the |w| between {low:.0e} and {high:g} below "
        f"and from which a weight has not moved after {options['updates']} equal updates, and the share of |w| in "
        "between where it has not."
    )


def notes(options: Record) -> tuple[str, ...]:
    rates = {name: number_text(options[name]) for name in ("lr", "lr_mult", "lr_adamw", "gradient", "deviation")}
    limit = options["limit"]
    return (
        f"Rates of the reference run at their peak, without decay: eta_a {rates['lr']} and eta_m {rates['lr_mult']} "
        f"(Madam: the latter); AdamW {rates['lr_adamw']} [our reading]. Gradients of constant size "
        f"{rates['gradient']}, which matters to the unnormalized form only. In block formats the neighbours of a "
        f"weight are typical of N(0, {rates['deviation']}).",
        f"> {limit}: not within {limit} updates. all: at no |w| does a weight move. none: no such |w| in the range.",
    )
