"""What the page opens with: five sentences made of the data, and what AdamW loses by coarser weights in each regime.

They say of any study what was tested, what came out, how sure that is, what the study cannot test, and what to read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import is_level
from mpadam.analysis.style import optimizer_styles
from mpadam.claims.effects import ALTERNATIVE, FORM, ITSELF, Effect, Effects, sides
from mpadam.claims.reported import below_paper_scale
from mpadam.claims.samples import ClaimCell
from mpadam.claims.verdicts import LEAST_SEEDS, NOT_RUN
from mpadam.claims.words import COST, GAIN, Writer
from mpadam.presence import is_there
from mpadam.site.facts import TEXTS

_ONE_BY_ONE = 2  # cells that are told each


@dataclass(frozen=True)
class Cost:
    """What AdamW loses in a regime. where: the regime, with model or budget where a study has several of them.

    shown: yes, no, or why neither.
    """

    where: str
    text: str
    shown: str


@dataclass(frozen=True)
class Abstract:
    """sentences: what each is about, and its parts."""

    sentences: list[tuple[str, list[str]]]
    costs: list[Cost]


def abstract(collected: Collected, claims: dict[str, Any] | None) -> Abstract:
    if collected.config.report == "updates":
        return Abstract(_of_updates(collected), [])
    effects = Effects(collected)
    sentences = [
        ("Tested", [_tested(collected)]),
        ("Result", _result(effects)),
        ("Certainty", [_certainty(effects)]),
        ("Limits", _limits(collected, effects, claims)),
    ]
    return Abstract(sentences, _costs(effects.costs))


# --- what was tested -------------------------------------------------------------------------------------------------


def _tested(collected: Collected) -> str:
    trials = sum(len(tuning.trials) for tuning in collected.tunings)
    return (
        "Whether M+Adam, which keeps no fp32 copy of the weights, trains better than AdamW and than the other ways to "
        f"do without one: {_study(collected)}" + (f", at rates chosen in {trials:,} trials." if trials else ".")
    )


def _study(collected: Collected) -> str:
    runs, total = collected.runs, len(collected.runs)
    done = collected.count("completed") + collected.count("diverged")
    regime, seed = (_many(runs[name].nunique(), name) for name in ("regime", "seed"))
    model = _many(len({collected.config.models[name].size for name in runs["model"].unique()}), "model")
    optimizer = _many(len({name for name in runs["optimizer"] if not is_level(name)}), "optimizer")
    among = f"{total:,} runs" if done == total else f"{done:,} of {total:,} runs are in"
    return (
        f"{model} {_scale(collected)} on {TEXTS[collected.config.data.source]}, in {regime} (how weights are stored, "
        f"then multiplied), with {optimizer} and {seed}; {among}"
    )


def _parts(told: Sequence[str]) -> list[str]:
    """Of one sentence: with a capital letter, semicolons and a full stop."""
    first = told[0][:1].upper() + told[0][1:]
    return [f"{text}{';' if n < len(told) else '.'}" for n, text in enumerate([first, *told[1:]], 1)]


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def _span(texts: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))


def _scale(collected: Collected) -> str:
    """`of 0.42M parameters, trained for 400 updates`, or from the least to the most."""
    size = collected.vocabulary
    if size is None:
        return "of a size that depends on the vocabulary, trained"
    models = [collected.config.models[name] for name in collected.runs["model"].unique()]
    pairs = collected.runs[["model", "budget"]].drop_duplicates().itertuples(index=False)
    parameters = sorted(model.parameters(size) for model in models)
    steps = sorted(collected.updates(name, int(budget)) for name, budget in pairs)
    sizes = _span([f"{count / 1e6:.2g}M" if count < 1e8 else f"{count / 1e6:,.0f}M" for count in parameters])
    return f"of {sizes} parameters, trained for {_span([f'{count:,}' for count in steps])} updates"


# --- what came out ---------------------------------------------------------------------------------------------------


def _result(effects: Effects) -> list[str]:
    own, rivals, forms = (_low(effects, kind) for kind in (ITSELF, ALTERNATIVE, FORM))
    names = " or ".join(style.label for style in optimizer_styles(one.entry for one in rivals).values())
    told = [
        _loss(effects.costs),
        _tally("M+Adam", "than AdamW", [one.gain for one in own]),
        _tally("M+Adam", f"than the strongest alternative ({names})", [one.over for one in rivals if one.over]),
        _best_form(forms),
    ]
    return _parts([text for text in told if text] or ["No pair of runs is in yet"])


def _low(effects: Effects, kind: str) -> list[Effect]:
    """Where weights are stored below fp32."""
    regimes = effects.collected.config.regimes
    return [one for one in effects.gains if one.kind == kind and regimes[one.gain.regime].masters != "fp32"]


def _loss(found: Sequence[ClaimCell]) -> str:
    known = [cell for cell in found if cell.interval and not cell.untestable]
    shown = [cell for cell in known if _is_shown(cell)]
    most = max(shown, key=lambda cell: cell.mean or 0.0, default=None)
    if most is None:
        return f"AdamW is not shown to lose anything by weights below fp32 in {_of(0, known)}" if known else ""
    return (
        f"AdamW is shown to lose by weights below fp32 in {_of(len(shown), known)}, most in {_one(most, found, COST)}"
    )


def _of(count: int, found: Sequence[ClaimCell]) -> str:
    """`none of 10 regimes`, or cells, where a regime has several models or budgets."""
    noun = "regime" if len({(cell.model, cell.budget) for cell in found}) == 1 else "cell"
    return f"{count or 'none'} of {_many(len(found), noun)}"


def _tally(what: str, than: str, found: Sequence[ClaimCell]) -> str:
    """`M+Adam is shown to be better than AdamW in 1 of 10 regimes, ..., worse in none, and undecided in 9, ...`."""
    known = [cell for cell in found if cell.mean is not None and not cell.diverged]
    if not known:
        return ""
    lost = f" ({len(found) - len(known)} more diverged or not run)" if len(known) < len(found) else ""
    if max(cell.n for cell in known) < LEAST_SEEDS:
        lower = sum((cell.mean or 0.0) > 0 for cell in known)
        return f"{what} has a lower mean perplexity {than} in {_of(lower, known)}{_reach(known)}{lost}"
    better, worse, still = sides(known).values()
    return (
        f"{what} is shown to be better {than} in {_of(len(better), known)}{_each(better, known)}, worse in "
        f"{len(worse) or 'none'}{_each(worse, known)}, and undecided in {len(still) or 'none'}{_reach(still)}{lost}"
    )


def _each(found: Sequence[ClaimCell], among: Sequence[ClaimCell]) -> str:
    if len(found) > _ONE_BY_ONE:
        return _reach(found)
    return f": {', '.join(_one(cell, among, GAIN, family=True) for cell in found)}" if found else ""


def _reach(found: Sequence[ClaimCell]) -> str:
    means = [cell.mean for cell in found if cell.mean is not None]
    return f", means {GAIN.span((min(means), max(means)))}%" if means else ""


def _one(cell: ClaimCell, among: Sequence[ClaimCell], write: Writer, *, family: bool = False) -> str:
    interval = cell.family_interval if family else cell.interval
    return f"{_where(cell, among)} {write.text(cell.mean or 0.0, interval)}"


def _where(cell: ClaimCell, among: Sequence[ClaimCell]) -> str:
    """`fp8-bf16`, with the model or the budget where these cells have several."""
    varied = {name for name in ("model", "budget") if len({getattr(one, name) for one in among}) > 1}
    model, budget = cell.model if "model" in varied else "", f"{cell.budget}x" if "budget" in varied else ""
    return " ".join(filter(None, (model, budget, cell.regime)))


def _best_form(forms: Sequence[Effect]) -> str:
    known = [one for one in forms if one.gain.mean is not None and not one.gain.diverged]
    if not known:
        return ""
    best = max(known, key=lambda one: one.gain.mean or 0.0)
    label = optimizer_styles([best.entry])[best.entry].label
    gained = _one(best.gain, [one.gain for one in known], GAIN, family=True)
    return f"the form of M+Adam that gains most over AdamW, chosen after the fact, is {label}: {gained}"


# --- how sure --------------------------------------------------------------------------------------------------------


def _certainty(effects: Effects) -> str:
    cells = [one.gain for one in _low(effects, ITSELF)]
    seeds = sorted({cell.n for cell in cells if cell.n})
    if not seeds:
        return "Nothing is known yet: no run of M+Adam has its pair."
    if seeds[-1] < LEAST_SEEDS:
        told = _many(seeds[-1], "seed")
        return f"Directions only: {told} cannot tell an effect from noise, and a verdict takes at least {LEAST_SEEDS}."
    edges = list(dict.fromkeys(edge for cell in (*cells, *effects.costs) for edge in cell.edges))
    rates = "each best rate has worse neighbours on both sides, one rate at a time"
    if edges:
        rates = f"some best rates are at an end of what was tried ({', '.join(edges)})"
    missing = sum(bool(cell.missing) for cell in cells)
    waiting = f"; {missing} of {len(cells)} comparisons wait for seeds and decide nothing yet" if missing else ""
    return (
        f"Effects are in percent of perplexity, means over {_span([str(n) for n in seeds])} paired seeds with 95% "
        "intervals in brackets (Student's t; M+Adam's are wide enough for all that is compared); shown means that the "
        f"interval excludes zero, undecided that the question is open, not that there is no effect; {rates}{waiting}."
    )


# --- what cannot be tested -------------------------------------------------------------------------------------------


def _limits(collected: Collected, effects: Effects, claims: dict[str, Any] | None) -> list[str]:
    told = []
    if below_paper_scale(collected):
        told.append(
            "the models are a fraction of the paper's smallest (60m), so nothing here settles a claim of the paper"
        )
    known = [cell for cell in effects.costs if cell.interval and not cell.untestable]
    idle = [_where(cell, effects.costs) for cell in known if not _is_shown(cell)]
    if idle:
        where = " and ".join(idle)
        told.append(f"in {where} AdamW is not shown to lose anything by its storage, so there is no gap to recover")
    if not effects.costs:
        told.append("without AdamW at fp32 weights and the same compute, nothing shows what coarser storage costs")
    told += _unanswered(claims["claims"]) if claims else []
    told.append("one text and one validation set say nothing about others")
    return _parts(told)


def _unanswered(claims: Sequence[dict[str, Any]]) -> list[str]:
    absent = sum(claim["verdict"] == NOT_RUN for claim in claims)
    unequal = sum(bool(cell["untestable"]) for claim in claims for cell in claim["cells"])
    have = "has" if unequal == 1 else "have"
    why = f"{have} no verdict by the design of the study (rates tuned for one side alone, or short trials)"
    told = [f"{_many(unequal, 'cell')} of claims {why}"] if unequal else []
    return told + ([f"{absent} of {len(claims)} claims {'was' if absent == 1 else 'were'} not run"] if absent else [])


# --- a report about updates alone -----------------------------------------------------------------------------------


def _of_updates(collected: Collected) -> list[tuple[str, list[str]]]:
    """Of its table `updates`: which share of updates changes the stored weight."""
    path = collected.paths.output / "tables" / "updates.csv"
    table = pd.read_csv(path) if is_there(path) else pd.DataFrame(columns=["regime", "optimizer", "branch", "survive"])
    labels = optimizer_styles(table["optimizer"])
    told = []
    for regime, own in table[table["branch"] != "both"].groupby("regime", sort=False):
        shares = []
        for optimizer, rows in own.groupby("optimizer", sort=False):
            by_branch = [(f"{100 * row['survive']:.2g}%", row["branch"]) for row in rows.to_dict("records")]
            named = [f"{share} ({branch})" if len(by_branch) > 1 else share for share, branch in by_branch]
            shares.append(f"{labels[str(optimizer)].label} {' and '.join(named)}")
        told.append(f"{regime}: {'; '.join(shares)}")
    if told:
        told[0] = f"updates to the projections that change the stored weight, in {told[0]}"
    seeds = _span([str(n) for n in sorted({int(n) for n in table.get("seeds", ())})] or ["0"])
    limits = "nothing is tuned, or runs are too short for a perplexity to mean anything"
    return [
        ("Tested", [f"What single updates do to the stored weights along training: {_study(collected)}."]),
        ("Result", _parts(told or ["no probe is in yet"])),
        ("Certainty", [f"Each share is over all probes of all its runs (seeds: {seeds}), without an interval."]),
        ("Limits", _parts([limits, "so no claim about perplexity has a verdict, and none is compared"])),
    ]


# --- what AdamW loses ------------------------------------------------------------------------------------------------


def _is_shown(cell: ClaimCell) -> bool:
    return cell.interval is not None and cell.interval[0] > 0


def _costs(found: Sequence[ClaimCell]) -> list[Cost]:
    return [_cost(cell, _where(cell, found)) for cell in found]


def _cost(cell: ClaimCell, where: str) -> Cost:
    if cell.mean is None or cell.diverged:
        return Cost(where, "div." if cell.diverged else "not run", "")
    shown = "yes" if _is_shown(cell) else "no" if cell.interval else "one seed"
    return Cost(where, COST.text(cell.mean, cell.interval), "unequal rates" if cell.untestable else shown)
