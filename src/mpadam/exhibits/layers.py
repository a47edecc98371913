"""What survives rounding along training, layer by layer: the share of intended updates that change the stored weight,
for every branch alone, in attention and in MLPs. Look at whether what the survival figures show is so in every layer.
"""

import pandas as pd
from matplotlib.axes import Axes

from mpadam.analysis.probes import Probes
from mpadam.analysis.style import regime_styles
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.lines import BranchLines, branch_lines, draw_branches
from mpadam.exhibits.kit.pictures import Picture, alternative
from mpadam.exhibits.source import Source
from mpadam.exhibits.updates import ROLES

NAME = "layers"
TITLE = "Which updates survive along training, by layer"
NEEDS = "probes"
PLACE = 114
OF_LAYERS = True

COLUMNS, HEIGHTS = 3, (1.8, 1.8)


def layer_shares(probes: Probes) -> pd.DataFrame:
    """regime, optimizer, branch, role, layer -> intended, survived, share: summed over all probes of all seeds."""
    rows = probes.of("layer_survival").rename(columns={"bin": "layer", "count": "intended"})
    rows = rows.assign(survived=(rows["value"] * rows["intended"]).round().astype("int64"))
    rows = rows.assign(layer=pd.to_numeric(rows["layer"]))
    keys = ["regime", "optimizer", "branch", "role", "layer"]
    summed = rows.groupby(keys, sort=False)[["intended", "survived"]].sum().reset_index()
    return summed.assign(share=summed["survived"] / summed["intended"]).sort_values(keys, kind="stable")


def make(source: Source) -> Picture:
    shares = layer_shares(source.probes)
    shown = shares[shares["branch"] != "both"]
    lines = branch_lines(zip(shown["optimizer"], shown["branch"], strict=True))
    regimes = list(regime_styles(shown["regime"].tolist()))
    figure, pairs = kit.pairs(
        len(regimes), columns=COLUMNS, heights=HEIGHTS, empty="no probe of layers yet", sharex=True, sharey=True
    )
    for place, (pair, name) in enumerate(zip(pairs, regimes, strict=False)):
        for axes, role in zip(pair, ROLES, strict=True):
            _panel(axes, shown[(shown["regime"] == name) & (shown["role"] == role)], lines)
            axes.set(ylabel="" if place % COLUMNS else f"{role}\nshare that survives")
        pair[0].set_title(name)
        pair[1].set_xlabel("layer")
    kit.legend(figure, {"": [kit.line(**style) for style in lines.values()]})
    alt = alternative("Share of surviving updates against the layer", regimes, "The CSV file next to the figure")
    return Picture(NAME, TITLE, figure, _CAPTION, alt, shares)


def _panel(axes: Axes, shares: pd.DataFrame, lines: BranchLines) -> None:
    draw_branches(axes, shares, lines, x="layer", y="share", size=4)
    layers = sorted(shares["layer"].unique())
    axes.set(ylim=(-0.04, 1.04))
    kit.fixed_ticks(axes, layers, map(str, layers))


_CAPTION = (
    "Share of intended updates that change the stored weight, by layer, for attention and MLP projections, summed over "
    "all probes and seeds. Intended and survived are as in the figures by |w|; each branch is counted alone, without "
    "the other and without decay. Every optimizer runs at its own rates. What both branches of M+Adam do together is "
    "in the CSV file."
)
