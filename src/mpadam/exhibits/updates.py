"""What became of updates along training, in one table: how many survive rounding, how large they are, and whether they
descend, by regime, optimizer and branch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from mpadam.analysis.probes import Probes, largest_bins
from mpadam.analysis.style import optimizer_styles, regime_styles
from mpadam.exhibits.kit.table import Entry, Table, entries
from mpadam.exhibits.source import Source

NAME = "updates"
TITLE = "What became of updates along training"
NEEDS = "probes"
PLACE = 100
OF_LAYERS = True

ROLES = ("attention", "mlp")
LARGEST = 0.1  # share of the weights, those of the largest |w|
#: branch of the table -> branch of the cosine
COSINES = {"additive": "additive", "multiplicative": "ln"}
_HEADINGS = ("survive", "largest tenth", "step / spacing", "step / |w|", "cosine", "loss fell")
_RUN = ["regime", "optimizer"]
_LOOK = ["seed", "step"]


def make(source: Source) -> Table:
    data = pd.DataFrame(_rows(source.probes))
    return Table(
        NAME,
        TITLE,
        caption=_CAPTION,
        header=("regime", "optimizer", "branch", *_HEADINGS),
        rows=tuple(_entries(data)),
        headings=3,
        data=data,
    )


def _rows(probes: Probes) -> Iterator[dict[str, Any]]:
    table = probes.of("survival", "weights", "octave", "layer_size", "cosine", "loss_fell")
    for regime in regime_styles(table["regime"]):
        for optimizer in optimizer_styles(table.loc[table["regime"] == regime, "optimizer"]):
            own = table[(table[_RUN] == [regime, optimizer]).all(axis=1)]
            for branch in ("additive", "multiplicative", "both"):
                if (own["branch"] == branch).any():
                    yield {"regime": regime, "optimizer": optimizer, "branch": branch, **_numbers(own, branch)}


def _numbers(own: pd.DataFrame, branch: str) -> dict[str, Any]:
    projections = own[own["role"].isin(ROLES)]
    survival = projections[(projections["quantity"] == "survival") & (projections["branch"] == branch)]
    top = largest_bins(projections[projections["quantity"] == "weights"], _LOOK, LARGEST)
    octaves = projections[(projections["quantity"] == "octave") & (projections["branch"] == branch)]
    sizes = projections[projections["quantity"] == "layer_size"]
    weight, step = (_root_mean_square(sizes[sizes["branch"] == name]) for name in ("weight", branch))
    cosine = own[(own["quantity"] == "cosine") & (own["branch"] == COSINES.get(branch)) & (own["role"] == "all")]
    fell = own[own["quantity"] == "loss_fell"]
    return {
        "survive": _share(survival),
        "survive_largest": _share(survival.merge(top, on=[*_LOOK, "bin"])),
        "octave": _median_octave(octaves),
        "relative": step / weight if weight else None,
        "cosine": float(cosine["value"].mean()) if len(cosine) else None,
        "fell": round(float((fell["value"] * fell["count"]).sum())),
        "probes": int(fell["count"].sum()),
        "seeds": int(own["seed"].nunique()),
    }


def _share(survival: pd.DataFrame) -> float | None:
    intended = int(survival["count"].sum())
    return float((survival["value"] * survival["count"]).sum() / intended) if intended else None


def _root_mean_square(sizes: pd.DataFrame) -> float:
    return float(np.sqrt((sizes["value"] ** 2 * sizes["count"]).sum() / sizes["count"].sum()))


def _median_octave(octaves: pd.DataFrame) -> float | None:
    """log2 of the median of |step| / spacing, interpolated within its octave."""
    if octaves.empty:
        return None
    counts = octaves.assign(at=pd.to_numeric(octaves["bin"])).groupby("at")["count"].sum()
    half, below = counts.sum() / 2, counts.cumsum() - counts
    at = int(below[below <= half].index.max())
    return float(at + (half - below[at]) / counts[at])


def _entries(data: pd.DataFrame) -> Iterator[tuple[Entry, ...]]:
    labels = optimizer_styles(data["optimizer"]) if len(data) else {}
    for row in data.to_dict("records"):
        octave = row["octave"]
        yield entries(
            row["regime"],
            labels[row["optimizer"]].label,
            row["branch"],
            _percent(row["survive"]),
            _percent(row["survive_largest"]),
            "" if pd.isna(octave) else f"{2.0**octave:.2g}",
            f"{row['relative']:.2g}",
            "" if pd.isna(row["cosine"]) else f"{row['cosine']:.3f}",
            f"{row['fell']} of {row['probes']}" if row["branch"] != "multiplicative" else "",
        )


def _percent(share: float | None) -> str:
    return "" if share is None or pd.isna(share) else f"{100 * share:.3g}%"


_CAPTION = (
    "Attention and MLP projections, all probes and seeds together, each branch alone, without decay. Survive: share of "
    "intended updates that change the stored weight, of all weights and of the largest tenth. Step / spacing: median "
    "of the step's size over the distance from the weight to its neighbour in the format; below about 0.5 rounding to "
    "nearest undoes it. Step / |w|: root mean square of the steps over that of the weights. Cosine: mean of cos(-g, "
    "u_a) for the additive branch and of cos(-g_e, z) for the multiplicative one, over all parameters. Loss fell: "
    "probes at which the loss of the same batch was lower after the whole update."
)
