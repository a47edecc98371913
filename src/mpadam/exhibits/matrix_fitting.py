"""Final errors of the matrix fitting for every method in both ways of choosing its rates: the best for each task, and
one for all. The paper compares single branches in the first way with M+Adam in the second; here both are shown for
each.
"""

from typing import Any

import numpy as np
import pandas as pd

from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.texts import number_text
from mpadam.exhibits.kit.table import Table, entries
from mpadam.exhibits.source import Source

NAME = "matrix-fitting"
TITLE = "Matrix fitting in bf16: final errors (behind Figures 3 and 5)"
NEEDS = "diagnostics/matrix-fitting"
PLACE = 150

#: of a method in one way of choosing its rates: tasks -> rates, errors
Record = dict[str, Any]


def make(source: Source) -> Table:
    kept = source.record(f"{NEEDS}/results.json")
    labels = optimizer_styles(choice["method"] for choice in kept["choices"])
    order = list(labels)
    choices = sorted(kept["choices"], key=lambda c: (c["rates"] != "best per task", order.index(c["method"])))
    tasks = list(choices[0]["tasks"])
    return Table(
        NAME,
        TITLE,
        caption=(
            "Relative error after the last tenth of the updates: geometric mean (least to largest) over "
            f"n = {kept['options']['seeds']} seeds, lower is better; and the rates, chosen on other seeds: eta_a, or "
            "Madam's only rate, then eta_m. edge: the best value is the least or greatest tried. The paper compares "
            "single branches at their best rate for each task with M+Adam at one rate for all; here every method is "
            "shown both ways."
        ),
        header=("rates", "method", *(header for task in tasks for header in (task, "at"))),
        rows=tuple(
            entries(
                *(choice["rates"], labels[choice["method"]].label),
                *(text for task in tasks for text in _texts(choice["tasks"][task])),
            )
            for choice in choices
        ),
        headings=2,
        data=pd.DataFrame([row for choice in kept["choices"] for row in _rows(choice)]),
    )


def _texts(found: Record) -> tuple[str, str]:
    rates = ", ".join(
        number_text(found[name]) + (" (edge)" if name in found["not_bracketed"] else "")
        for name in ("lr", "lr_mult")
        if name in found
    )
    errors = [error for error in found["final_errors"] if error is not None]
    lost = len(found["final_errors"]) - len(errors)
    if lost:
        return f"div. ({lost} of {len(found['final_errors'])})", rates
    return f"{np.exp(np.mean(np.log(errors))):.2g} ({min(errors):.2g}–{max(errors):.2g})", rates


def _rows(choice: Record) -> list[Record]:
    """A row per task and seed; `error` is empty where it diverged."""
    return [
        {
            **{"method": choice["method"], "rates": choice["rates"], "task": task},
            **{"lr": found["lr"], "lr_mult": found.get("lr_mult")},
            **{"not_bracketed": " ".join(found["not_bracketed"]), "seed": seed, "error": error},
        }
        for task, found in choice["tasks"].items()
        for seed, error in enumerate(found["final_errors"])
    ]
