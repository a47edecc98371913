"""What survives rounding along training, in one regime: the share of intended updates that change the stored weight,
against ``|w|``, for the additive part alone, the multiplicative part alone and both. Look at whether the multiplicative
part is alive at large ``|w|``, where the additive part is rounded away.
"""

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes

from mpadam.analysis.entries import is_level
from mpadam.analysis.probes import Probes
from mpadam.analysis.style import BLACK, BLUE, VERMILLION, Dash, optimizer_styles
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source

NAME = "survival-{regime}"
TITLE = "Which updates survive along training: {regime}"
NEEDS = "probes"

PROJECTIONS = ("attention", "mlp", "projection")
FEWEST = 100  # intended updates of a bin that is drawn
COLUMNS, HEIGHT = 4, 1.9
ZERO = "-inf"  # the bin of weights that are zero
_ZERO = 2.5  # binades from the lowest bin down to the place of zero
#: branch -> colour, dash, label
BRANCHES: dict[str, tuple[str, Dash, str]] = {
    "additive": (BLUE, "-", "additive part alone"),
    "multiplicative": (VERMILLION, (0, (5, 1.5)), "multiplicative part\nalone (twin: its\nsecond branch)"),
    "both": (BLACK, (0, (1, 1.5)), "both together"),
}
_WEIGHTS = "#dddddd"


def survival_shares(probes: Probes, regime: str) -> pd.DataFrame:
    """optimizer, branch, bin -> intended, survived, share: projections, summed over all probes of the regime's runs.

    Branch `weights`: share of the weights that lie in the bin.
    """
    own = probes.of("survival", "weights")
    own = own[(own["regime"] == regime) & own["role"].isin(PROJECTIONS)]
    own = own.assign(branch=own["branch"].where(own["quantity"] == "survival", "weights"))
    own = own.assign(survived=(own["value"] * own["count"]).round())
    grouped = own.groupby(["optimizer", "branch", "bin"], sort=False)[["count", "survived"]].sum().reset_index()
    whole = grouped.groupby(["optimizer", "branch"])["count"].transform("sum")
    share = (grouped["survived"] / grouped["count"]).where(grouped["branch"] != "weights", grouped["count"] / whole)
    place = pd.to_numeric(grouped["bin"])
    table = grouped.assign(share=share, place=place, survived=grouped["survived"].astype("int64"))
    table.loc[table["branch"] == "weights", "survived"] = 0
    table = table.sort_values(["optimizer", "branch", "place"], kind="stable")
    return table.rename(columns={"count": "intended"})[["optimizer", "branch", "bin", "intended", "survived", "share"]]


def make(source: Source, regime: str) -> Picture:
    """A panel per optimizer of the regime; bins with few updates, and levels of ablations, are in the CSV alone."""
    shares = survival_shares(source.probes, regime)
    levels = set(filter(is_level, shares["optimizer"]))
    shown = shares[~shares["optimizer"].isin(levels) & (shares["intended"] >= FEWEST)]
    styles = optimizer_styles(shown["optimizer"].tolist())
    figure, panels = kit.panels(
        len(styles), columns=COLUMNS, height=HEIGHT, empty="no probe yet", sharex=True, sharey=True
    )
    low, high = _ends(shown)
    for place, (axes, (name, style)) in enumerate(zip(panels, styles.items(), strict=False)):
        _panel(axes, shown[shown["optimizer"] == name], low)
        axes.set(title=style.label, ylabel="" if place % COLUMNS else "share that survives")
        _binades(axes, low, high, labelled=place + COLUMNS >= len(styles))
    lines = [kit.line(label, color=colour, linestyle=dash) for colour, dash, label in BRANCHES.values()]
    kit.legend(figure, {"": [*lines, kit.patch("share of the weights", color=_WEIGHTS)]})
    labels = [style.label for style in styles.values()]
    alt = alternative(f"Share of surviving updates against |w| in {regime}", labels, "The CSV file next to the figure")
    return Picture(NAME.format(regime=regime), TITLE.format(regime=regime), figure, _caption(regime), alt, shares)


def _ends(shown: pd.DataFrame) -> tuple[int, int]:
    """Exponents of the lowest bin that is drawn, and of the end of the highest."""
    exponents = pd.to_numeric(shown.loc[shown["bin"] != ZERO, "bin"])
    return (int(exponents.min()), int(exponents.max()) + 1) if len(exponents) else (0, 1)


def _panel(axes: Axes, shares: pd.DataFrame, low: int) -> None:
    """Bins lie in the middle of their binade; zero lies left of them all and is joined to none."""
    exponent = pd.to_numeric(shares["bin"])
    zero = shares["bin"] == ZERO
    placed = shares.assign(x=(exponent + 0.5).where(~zero, low - _ZERO), part=zero.astype(str))
    weights, updates = placed[placed["branch"] == "weights"], placed[placed["branch"] != "weights"]
    axes.bar(weights["x"], weights["share"], width=0.9, color=_WEIGHTS, linewidth=0)
    drawn = kit.plot(updates, x="x", y="share", color="branch", linestyle="branch", group="part")
    scales = {
        "color": {branch: colour for branch, (colour, _, _) in BRANCHES.items()},
        "linestyle": {branch: dash for branch, (_, dash, _) in BRANCHES.items()},
    }
    kit.draw(drawn.add(so.Path(marker=".", pointsize=4, linewidth=1.3), legend=False).scale(**scales), axes)


def _binades(axes: Axes, low: int, high: int, *, labelled: bool) -> None:
    ticks = [exponent for exponent in range(low + 4, high + 1) if exponent % 8 == 0]  # zero has a label of its own
    axes.set(ylim=(-0.04, 1.04), xlim=(low - _ZERO - 0.8, high + 0.2), xlabel="|w|" if labelled else "")
    kit.fixed_ticks(axes, [low - _ZERO, *ticks], ["0", *(f"$2^{{{e}}}$" for e in ticks)])
    axes.tick_params(labelbottom=labelled, labelleft=bool(axes.get_ylabel()))


def _caption(regime: str) -> str:
    return (
        f"Regime {regime}: share of intended updates that change the stored weight, against the stored |w| in powers "
        "of two (zero apart), for attention and MLP projections, summed over all probes, seeds, models and budgets. An "
        "update is intended where the part in question is not zero, and survives where what it would store differs "
        "from what a step of zero would store, both on the block scales of the whole update, with its random bits and "
        f"its carry. Bins with fewer than {FEWEST} intended updates are left out; grey bars are the share of weights "
        "that lie in the bin. Levels of ablations are in the CSV alone. Compare M+Adam's parts at large |w| with the "
        "updates of AdamW in its own panel: every optimizer runs at its own rates, and M+Adam's additive part at a "
        "rate that was chosen together with that of the other part."
    )
