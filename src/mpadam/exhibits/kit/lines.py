"""Looks of lines that belong to optimizers without a regime: colour and marker of the one style map, and a dash each.

In figures of the study the dash says the regime. The diagnostics have none, so here it keeps apart, in grey too, forms
that share a colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.lines import Line2D

from mpadam.analysis.style import Dash, optimizer_styles

_DASHES: dict[str, Dash] = {
    "adamw": "-",
    "madam": (0, (6, 2)),
    "m-plus-adam": "-",
    "m-plus-adam-relative": (0, (4, 1.5, 1, 1.5)),
    "m-plus-adam-rho-tensor": (0, (8, 2)),
    "m-plus-adam-unnormalized": (0, (1, 1.2)),
    "additive-twin": "-",
}
#: the twin often coincides with M+Adam: it lies below, broader
_UNDERLAY = {"linewidth": 3.2, "markersize": 8, "alpha": 0.55, "zorder": 1.5}


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Keywords of `Axes.plot` for each optimizer, label included, in the order of legends."""
    return {
        name: {
            "label": style.label,
            "color": style.colour,
            "marker": style.marker,
            "linestyle": _DASHES.get(name, "-"),
            "linewidth": 1.3,
            "markersize": 4.5,
        }
        | (_UNDERLAY if name == "additive-twin" else {})
        for name, style in optimizer_styles(names).items()
    }


def handles(names: Iterable[str]) -> list[Line2D]:
    """Entries of a legend."""
    return [Line2D([], [], **look) for look in looks(names).values()]
