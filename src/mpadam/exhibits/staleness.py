"""The figure of staleness: second moments that rounding holds where they are, by beta2 and the states' dtype."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpadam.analysis.pictures import Picture, drawing
from mpadam.analysis.probes import Looks
from mpadam.analysis.style import BLUE, GREEN, VERMILLION
from mpadam.probes.outputs import STALENESS

#: state -> colour, marker, label
STATES = {
    "v": (BLUE, "o", "v, of the gradient"),
    "v_e": (VERMILLION, "^", "v_e, of the exponent gradient"),
    "v_r": (GREEN, "s", "v_r, Apollo-E's"),
}
_APART = 0.24  # between the states of one place on the axis
_SPREAD = 0.16  # of the points of one state, so that equal ones do not hide each other


def stale_shares(looks: Looks) -> pd.DataFrame:
    """state_dtype, beta2, state, regime, optimizer -> due, stale, share: summed over all looks."""
    rows = looks.of("stale").rename(columns={"branch": "state", "count": "due"})
    rows = rows[rows["due"] > 0]
    rows = rows.assign(stale=(rows["value"] * rows["due"]).round().astype("int64"))
    keys = ["state_dtype", "beta2", "state", "regime", "optimizer"]
    summed = rows.groupby(keys, sort=True)[["due", "stale"]].sum().reset_index()
    return summed.assign(share=summed["stale"] / summed["due"])


def staleness_picture(looks: Looks) -> Picture:
    """A place for each beta2 and dtype, a point for each optimizer and regime, a bar at the mean of each state."""
    shares = stale_shares(looks)
    places = list(dict.fromkeys(zip(shares["state_dtype"], shares["beta2"], strict=True)))
    with drawing():
        figure = Figure((max(1.1 * len(places), 2.2) + 3.0, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for place, (dtype, beta2) in enumerate(places):
            at = shares[(shares["state_dtype"] == dtype) & (shares["beta2"] == beta2)]
            for shift, (state, (colour, marker, _)) in enumerate(STATES.items()):
                values = at.loc[at["state"] == state, "share"].tolist()
                if not values:
                    continue
                middle = place + (shift - 1) * _APART
                axes.plot(
                    [middle + step for step in _spread(len(values))],
                    values,
                    marker,
                    color=colour,
                    markersize=4,
                    alpha=0.7,
                )
                axes.hlines(sum(values) / len(values), middle - 0.1, middle + 0.1, color=colour, linewidth=1.5)
        axes.set_xticks(range(len(places)), [f"{dtype}\n{beta2:g}" for dtype, beta2 in places])
        axes.set_xlim(-0.5, max(0, len(places) - 1) + 0.5)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel(r"dtype of the states, and $\beta_2$")
        axes.set_ylabel("share of due entries that stay")
        handles = [
            Line2D([], [], color=colour, marker=marker, linestyle="none", label=label)
            for state, (colour, marker, label) in STATES.items()
            if state in set(shares["state"])
        ]
        figure.legend(handles=handles, loc="outside right upper", frameon=False)
    return Picture(STALENESS, "Stale second moments along training", figure, _CAPTION, _alt(places), shares)


def _spread(count: int) -> list[float]:
    return [0.0] if count == 1 else [_SPREAD * (i / (count - 1) - 0.5) for i in range(count)]


_CAPTION = (
    "Share of the second moments' entries that the float32 update would move and whose stored value stays as it is, "
    "by the dtype in which the states are kept and by beta2. A point is one optimizer in one regime, summed over all "
    "looks at all its runs; a bar is the mean of the points. A bf16 value has 8 bits: what moves it by less than half "
    "of the last one is lost, at every step again. Float32 states keep every such move."
)


def _alt(places: list[tuple[str, float]]) -> str:
    return (
        "Points of the share of stale entries of the second moments for each of "
        f"{', '.join(f'{dtype} at beta2 {beta2:g}' for dtype, beta2 in places) or 'no run yet'}. The CSV beside the "
        "figure holds the numbers."
    )
