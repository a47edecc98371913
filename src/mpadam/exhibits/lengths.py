"""What coarse storage costs tuned AdamW as training gets longer, for models of one shape at several numbers of updates:
perplexity above that of fp32 weights, the share of updates that rounding loses, and the rate that was best. Look at
whether the gap grows with the length, and whether a falling rate goes with it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import fp32_regime, with_runs
from mpadam.analysis.probes import read_probes
from mpadam.analysis.statistics import estimate
from mpadam.analysis.style import COLOURS, regime_styles
from mpadam.analysis.texts import number_text
from mpadam.analysis.tunings import Tuning
from mpadam.exhibits.kit import panels as kit
from mpadam.exhibits.kit.pictures import Picture, alternative, counts_text
from mpadam.exhibits.source import Source
from mpadam.exhibits.survival import PROJECTIONS
from mpadam.study.grid import TuningKey
from mpadam.study.tuning import trial_loss

Tunings = Mapping[TuningKey, Tuning]

NAME = "lengths"
TITLE = "What coarse storage costs AdamW, by length of training"
NEEDS = "runs"
PLACE = 35

HEIGHT = 3.0
ASIDE = 0.035  # of a factor of 2, between the regimes of one length
LABEL_CHARACTERS = 18  # of tick labels that fit next to each other
_ALONE = "The study trains no model of one shape at more than one length: there is nothing to compare."
_LENGTH = {"steps_1x", "tokens_per_parameter", "micro_batch_size"}  # what is not the shape of a model
_COLUMNS = ("shape", "model", "budget", "updates", "regime", "source", "n", "gap", "low", "high")
_RATES = ("tuned_updates", "rate", "bracketed")
_KEYS = ["model", "budget", "regime"]
#: column -> where its points are, which column says that they are filled, title of the panel, words without a point
PANELS = {
    "gap": ("updates", "by_seeds", "perplexity above fp32, %", "no pair of results yet"),
    "lost": ("updates", "updates", "updates lost to rounding, %", "no probe yet"),
    "rate": ("tuned_updates", "bracketed", r"best rate $\eta_a$", "no tuning yet"),
}


def groups(study: Collected) -> dict[str, list[tuple[str, int]]]:
    """Models of one shape -> the (model, budget) pairs that AdamW trains, by updates; of two lengths at least."""
    asked = study.runs.loc[study.runs["optimizer"] == BASELINE, ["model", "budget"]].drop_duplicates()
    found: dict[str, list[tuple[str, int]]] = {}
    for model, budget in asked.itertuples(index=False):
        found.setdefault(study.config.models[model].model_dump_json(exclude=_LENGTH), []).append((model, budget))
    several = [sorted(own, key=lambda pair: study.updates(*pair)) for own in found.values()]
    several = [own for own in several if study.updates(*own[0]) < study.updates(*own[-1])]
    return {", ".join(dict.fromkeys(model for model, _ in own)): own for own in several}


def lengths(study: Collected) -> pd.DataFrame:
    """A row per length and regime: the gap in percent, from runs where they pair up, else from the best trials; the
    best rate, and the share of updates that was lost. shape: the name of the group."""
    adamw = with_runs(study, lambda _, optimizer: optimizer == BASELINE)
    found = {cell.key: cell for cell in cells(adamw.runs)}
    tuned = {t.key: t for t in study.tunings if t.status == "selected" and "lr" in t.selected}
    rows = []
    for shape, own in groups(study).items():
        for regime, (model, budget) in product(regime_styles(adamw.runs["regime"]), own):
            key = CellKey(model, budget, regime, BASELINE)
            if key in found:
                about = {"shape": shape, **vars(key), "updates": study.updates(model, budget)}
                rate = _rate(study, tuned.get(TuningKey(model, regime, BASELINE)))
                rows.append({**about, **_gap(study, found, tuned, key), **rate})
    frame = pd.DataFrame(rows, columns=[*_COLUMNS, *_RATES])
    return frame.merge(_lost(adamw), on=_KEYS, how="left") if rows else frame.assign(lost=None, intended=None)


def _gap(study: Collected, found: Mapping[CellKey, Cell], tuned: Tunings, key: CellKey) -> dict[str, Any]:
    """Mean and Student's interval of the paired differences in ln perplexity, as percent; of trials no interval, and
    none at all where a run diverged."""
    reference = replace(key, regime=fp32_regime(study.config, key.regime))
    if key == reference or reference not in found:
        return {}
    there, here = found[reference], found[key]
    if there.diverged or here.diverged:
        return {"source": "a run diverged"}
    shared = sorted(here.completed.keys() & there.completed.keys())
    if shared:
        paired = estimate([math.log(here.completed[seed] / there.completed[seed]) for seed in shared])
        return {"source": "runs", "n": paired.n, **_percent(gap=paired.mean, low=paired.low, high=paired.high)}
    trials = [tuned.get(TuningKey(key.model, regime, BASELINE)) for regime in (reference.regime, key.regime)]
    losses = [min(map(trial_loss, tuning.trials)) for tuning in trials if tuning is not None]
    if len(losses) < 2 or key.budget != study.config.tuning.budget:
        return {}
    return {
        "source": "trials",
        "n": 1,
        "updates": _trial_updates(study, key.model),
        **_percent(gap=losses[1] - losses[0]),
    }


def _percent(**logs: float | None) -> dict[str, float | None]:
    return {name: None if log is None else 100 * math.expm1(log) for name, log in logs.items()}


def _rate(study: Collected, tuning: Tuning | None) -> dict[str, Any]:
    if tuning is None:
        return {}
    updates = _trial_updates(study, tuning.key.model)
    return dict(zip(_RATES, (updates, tuning.selected["lr"], tuning.bracketed["lr"]), strict=True))


def _trial_updates(study: Collected, model: str) -> int:
    return max(1, round(study.updates(model, study.config.tuning.budget) * study.config.tuning.steps_fraction))


def _lost(adamw: Collected) -> pd.DataFrame:
    """model, budget, regime -> percent of the intended updates of projections that no run stored, and their number."""
    probes = read_probes(adamw).of("survival")
    probes = probes[probes["role"].isin(PROJECTIONS)]
    sums = probes.assign(survived=probes["value"] * probes["count"]).groupby(_KEYS, sort=False)[["count", "survived"]]
    summed = sums.sum().reset_index().rename(columns={"count": "intended"})
    return summed.assign(lost=100 * (1 - summed["survived"] / summed["intended"])).drop(columns="survived")


def make(source: Source) -> Picture:
    study = source.collected
    found = lengths(study)
    shapes = list(dict.fromkeys(found["shape"]))
    if not shapes:
        figure, (axes,) = kit.panels(0, columns=1, height=0.6, empty=_ALONE)
        axes.axis("off")
        return Picture(NAME, TITLE, figure, _ALONE, alternative(TITLE, [], "The CSV file next to the figure"), found)
    styles = {
        name: {"color": colour, "linestyle": dash}
        for (name, dash), colour in zip(regime_styles(found["regime"]).items(), cycle(COLOURS))
    }
    figure, panels = kit.panels(len(PANELS) * len(shapes), columns=len(PANELS), height=HEIGHT)
    for axes, (shape, column) in zip(panels, product(shapes, PANELS), strict=True):
        _draw(axes, found[found["shape"] == shape], column, styles)
        axes.set_title(PANELS[column][2])
        if column == "gap" and len(shapes) > 1:
            axes.set_ylabel(shape)
    marks = [
        kit.line(label, marker="o", markerfacecolor="white", linestyle="none")
        for label, there in (
            ("best trials,\nno interval", found["source"].eq("trials").any()),
            ("best rate not\nbracketed", found["bracketed"].eq(False).any()),
        )
        if there
    ]
    entries = [kit.line(name, marker="o", **style) for name, style in styles.items()]
    kit.legend(figure, {"weights-compute": entries, **({"hollow": marks} if marks else {})})
    alt = alternative(
        "Gap of AdamW to fp32 weights, share of lost updates and best rate against updates",
        shapes,
        "The CSV file next to the figure",
    )
    return Picture(NAME, TITLE, figure, _caption(study, found), alt, found)


def _draw(axes: Axes, own: pd.DataFrame, column: str, styles: Mapping[str, dict[str, Any]]) -> None:
    """One line per regime, moved apart sideways; filled where the point is of seeds, or its rate is bracketed."""
    at, filled, _, without = PANELS[column]
    known = own.assign(by_seeds=own["source"].eq("runs"))[own[column].notna()]
    if known.empty:
        kit.say(axes, without)
        return
    for place, (regime, style) in enumerate(styles.items()):
        line = known[known["regime"] == regime]
        x = line[at].astype(float) * 2.0 ** (ASIDE * (place - (len(styles) - 1) / 2))
        axes.plot(x, line[column].astype(float), **style)
        if column == "gap":
            axes.vlines(x, line["low"].astype(float), line["high"].astype(float), color=style["color"])
        fill = [style["color"] if whole else "white" for whole in line[filled]]
        axes.scatter(x, line[column].astype(float), s=25, color=fill, edgecolors=style["color"], zorder=3)
    if column == "gap":
        axes.axhline(0, color=kit.INK, linewidth=0.8)
    places = sorted(set(known[at]))
    axes.set(xscale="log", xlim=(places[0] / 1.3, places[-1] * 1.3), xlabel="updates")
    labels = [f"{round(place):,}" for place in places]
    kit.fixed_ticks(axes, places, labels, rotation=45 if len("".join(labels)) > LABEL_CHARACTERS else 0)
    if column == "rate":
        rates = sorted(set(known[column]))
        axes.set_yscale("log")
        axes.set_yticks(rates, map(number_text, rates))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        kit.few_ticks(axes)


def _caption(study: Collected, found: pd.DataFrame) -> str:
    tuning = study.config.tuning
    share = "" if tuning.steps_fraction == 1 else f"; trials have {tuning.steps_fraction:.0%} of a run's updates"
    paired = counts_text(found.loc[found["source"] == "runs", "n"].astype(int), "none yet")
    told = {
        "trials": " Hollow there: difference of the best trials, one seed, on the half of the validation text that "
        "rates are chosen on.",
        "a run diverged": " A length with a diverged run has no gap.",
    }
    return (
        "AdamW with coarse storage, tuned at each length, against the number of updates. Left: perplexity above that "
        "of AdamW with fp32 weights and the same compute, mean over paired seeds and Student's 95% interval "
        f"({paired}).{''.join(text for source, text in told.items() if source in set(found['source']))} Middle: share "
        "of the intended updates of attention and MLP projections that leave the stored weight as it is, over all "
        f"probes and seeds. Right: rate of the best trial{share}, hollow where a better one may lie beyond the range "
        "tried. Points of one length are moved apart sideways."
    )
