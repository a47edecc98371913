"""Second moments that rounding holds where they are, by beta2 and the dtype of the states."""

import pandas as pd
import seaborn.objects as so

from mpadam.analysis.probes import Probes
from mpadam.analysis.style import BLUE, GREEN, VERMILLION
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source

NAME = "staleness"
TITLE = "Stale second moments along training"
NEEDS = "probes"

#: state -> colour, marker, label
STATES = {
    "v": (BLUE, "o", "v, of the gradient"),
    "v_e": (VERMILLION, "^", "v_e, of the\nexponent gradient"),
    "v_r": (GREEN, "s", "v_r, Apollo-E's"),
}
_APART = 0.24  # between the states of one place on the axis
_SPREAD = 0.16  # of the points of one state, so that equal ones do not hide each other


def stale_shares(probes: Probes) -> pd.DataFrame:
    """state_dtype, beta2, state, regime, optimizer -> due, stale, share: summed over all probes."""
    rows = probes.of("stale").rename(columns={"branch": "state", "count": "due"})
    rows = rows[rows["due"] > 0]
    rows = rows.assign(stale=(rows["value"] * rows["due"]).round().astype("int64"))
    keys = ["state_dtype", "beta2", "state", "regime", "optimizer"]
    summed = rows.groupby(keys, sort=True)[["due", "stale"]].sum().reset_index()
    return summed.assign(share=summed["stale"] / summed["due"])


def make(source: Source) -> Picture:
    shares = stale_shares(source.probes)
    places = list(dict.fromkeys(zip(shares["state_dtype"], shares["beta2"], strict=True)))
    names = [f"{dtype}\n{beta2:g}" for dtype, beta2 in places]
    scales = {
        "color": {name: colour for name, (colour, _, _) in STATES.items()},
        "marker": {name: marker for name, (_, marker, _) in STATES.items()},
    }
    figure, (axes,) = kit.panels(len(places[:1]), columns=1, height=3.4, empty="no probe yet")
    if places:
        points = _placed(shares, places)
        drawn = kit.plot(points, x="x", y="share", color="state", marker="state")
        kit.draw(drawn.add(so.Dot(pointsize=4, alpha=0.7), legend=False).scale(**scales), axes)
        means = points.groupby(["middle", "state"])["share"].mean().reset_index()
        for middle, state, mean in means.itertuples(index=False):
            axes.hlines(mean, middle - 0.1, middle + 0.1, color=STATES[state][0], linewidth=1.5)
        axes.set(xlim=(-0.5, len(places) - 0.5), ylim=(-0.03, 1.03))
        kit.fixed_ticks(axes, range(len(places)), names)
        axes.set(xlabel=r"dtype of the states, and $\beta_2$", ylabel="share of due entries that stay")
    entries = [
        kit.line(label, color=colour, marker=marker, linestyle="none")
        for state, (colour, marker, label) in STATES.items()
        if state in set(shares["state"])
    ]
    kit.legend(figure, {"second moment": entries})
    alt = alternative(
        "Points of the share of stale entries of the second moments",
        [f"{dtype} at beta2 {beta2:g}" for dtype, beta2 in places],
        "The CSV file next to the figure",
    )
    return Picture(NAME, TITLE, figure, _CAPTION, alt, shares)


def _placed(shares: pd.DataFrame, places: list[tuple[str, float]]) -> pd.DataFrame:
    """The points with their places on the axis: the middle of their state, and spread around it."""
    keys = ["state_dtype", "beta2", "state"]
    order = shares.groupby(keys).cumcount()
    count = shares.groupby(keys)["share"].transform("size")
    place = [places.index(pair) for pair in zip(shares["state_dtype"], shares["beta2"], strict=True)]
    middle = pd.Series(place, index=shares.index) + (shares["state"].map(list(STATES).index) - 1) * _APART
    spread = _SPREAD * (order / (count - 1).clip(lower=1) - 0.5).where(count > 1, 0.0)
    return shares.assign(middle=middle, x=middle + spread)


_CAPTION = (
    "Share of the second moments' entries that the float32 update would move and whose stored value stays as it is, "
    "by the dtype in which the states are kept and by beta2. A point is one optimizer in one regime, summed over all "
    "probes of all its runs; a bar is the mean of the points. A bf16 value has 8 bits: what moves it by less than half "
    "of the last one is lost, at every step again. Float32 states keep every such move."
)
