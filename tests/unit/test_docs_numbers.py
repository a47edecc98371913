"""Numbers that README and docs/ state by hand are those of the plan, of the example and of the memory table."""

from __future__ import annotations

import csv
import inspect
import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

from mpadam import MPlusAdam
from mpadam.plan.plan import make_plan
from mpadam.study.archive import open_study
from mpadam.study.load import load_study
from mpadam.study.paths import StudyPaths

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "results/example/long/paper"
PRICE = 2.5


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def table(page: str, head: str) -> Iterator[list[str]]:
    """Rows of the table whose head begins like this."""
    lines = (ROOT / page).read_text(encoding="utf-8").partition(f"\n| {head}")[2].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        yield [part.strip(" `*") for part in line[1:-1].split("|")]


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plans(tmp_path: Path) -> dict[str, Any]:
    files = {"paper": [], "one-cell": [ROOT / "studies/one-cell.yaml"], "one-gpu": [ROOT / "studies/one-gpu.yaml"]}
    return {
        name: make_plan(load_study([ROOT / "config.yaml", *overlays]), tmp_path) for name, overlays in files.items()
    }


def test_i21_the_readme_names_what_a_cell_costs_before_its_command(plans: dict[str, Any]) -> None:
    cell, text = plans["one-cell"], words("README.md")
    hours = cell.total.hours
    told = f"about {hours:.0f} hours of an H100 ({cell.total.jobs} trainings, {hours:.1f} GPU-hours, "
    told += (
        f"{hours * PRICE:.0f} dollars or euros at {PRICE:.2f} per hour) and {cell.data.train_gigabytes:.0f} GB of C4"
    )
    assert told in text
    assert text.index(told) < text.index("--configfile studies/one-cell.yaml")
    assert f"{plans['one-gpu'].total.hours:.0f} GPU-hours." in text


def test_i21_the_readme_names_what_the_paper_costs_before_its_command(plans: dict[str, Any]) -> None:
    paper, text = plans["paper"], words("README.md")
    hours = paper.total.hours
    told = f"{hours:,.0f} GPU-hours of H100s, or {hours * PRICE:,.0f} dollars or euros at {PRICE:.2f} per hour "
    told += f"({hours / 24:.0f} days of a single GPU), {paper.data.train_gigabytes:.0f} GB of C4 to download, and "
    told += f"{paper.data.token_gigabytes + paper.results_gigabytes:.0f} GB of disk."
    assert told in text
    assert text.index(told) < text.index("snakemake --profile slurm ")
    assert f"{paper.total.jobs:,} trainings" in text


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    claims = json.loads((PAPER / "claims.json").read_text())["claims"]
    return [cell for claim in claims for cell in claim["cells"] if cell.get("mean") is not None]


def percent(mean: float, interval: list[float], sign: int = 1) -> str:
    """sign: 1 for the gain of a difference in ln(perplexity), -1 for the loss."""
    mean, low, high = (f"{round(sign * 100 * (1 - math.exp(-sign * x)), 1) + 0.0:+.1f}%" for x in (mean, *interval))
    return f"{mean} ({low} to {high})"


STORED = ("bf16", "fp8", "fp8e4m3", "nvfp4")
REGIMES = tuple(f"{masters}-bf16" for masters in STORED)


def test_i21_which_optimizer_has_the_differences_and_verdicts_of_the_example(cells: list[dict[str, Any]]) -> None:
    rows = {comparison: told for comparison, *told in table("docs/which-optimizer.md", "difference")}
    assert len(rows) == 8
    for comparison, told in rows.items():
        for regime, entry in zip(REGIMES, told, strict=True):
            found = [cell for cell in cells if (cell["contrast"], cell["regime"]) == (comparison, regime)]
            assert entry in [f"{percent(c['mean'], c['interval_family'])}, {c['verdict']}" for c in found], comparison


def test_i21_which_optimizer_has_what_low_precision_costs_adamw(cells: list[dict[str, Any]]) -> None:
    costs = {
        cell["regime"]: cell["premise"]
        for cell in cells
        if cell.get("premise") and cell["premise"]["needs"] == "what low precision costs AdamW"
    }
    rows = list(table("docs/which-optimizer.md", "regime"))
    assert [regime for regime, *_ in rows] == [*REGIMES]
    for regime, cost, shown in rows:
        premise = costs[regime]
        assert cost == percent(premise["mean"], premise["interval_95"], -1)
        assert shown == ("yes" if premise["interval_95"][0] > 0 else "no")


#: row of the tables of gains and of perplexities -> optimizer
TRAINED = {
    "AdamW": "adamw",
    "AdamW at (0.9, 0.95)": "adamw@betas0",
    "AdamW + SR": "adamw-sr",
    "AdamW + Kahan": "adamw-kahan",
    "AdamW + ECO": "adamw-eco",
    "AdamW + ECO + SR": "adamw-eco-sr",
    "M+Adam": "m-plus-adam",
    "M+Adam, relative form": "m-plus-adam-relative",
    "M+Adam + SR": "m-plus-adam-sr",
    "M+Adam at the `lr` of AdamW": "m-plus-adam@adamw_lr",
    "the additive twin": "additive-twin",
}


def test_i21_which_optimizer_has_the_perplexities_of_the_example() -> None:
    values: dict[tuple[str, str], list[float]] = {}
    with (PAPER / "tables/runs.csv").open() as file:
        for line in csv.DictReader(file):
            if line["model"] == "400k":
                values.setdefault((line["regime"], line["optimizer"]), []).append(float(line["val_ppl"]))
    told = {key: f"{statistics.mean(of):.2f} ± {statistics.stdev(of):.2f}" for key, of in values.items()}
    assert {len(of) for of in values.values()} == {6}
    rows = {name: entries for name, _, *entries in table("docs/which-optimizer.md", "optimizer")}
    assert rows == {name: [told[regime, optimizer] for regime in REGIMES] for name, optimizer in TRAINED.items()}
    text = (ROOT / "docs/which-optimizer.md").read_text(encoding="utf-8")
    assert f"AdamW has {told['fp32-bf16', 'adamw']} and takes 12 bytes" in " ".join(text.split())
    assert set(re.findall(r"\d+\.\d+ ± \d+\.\d+", text)) <= {*told.values()}


def test_i21_which_optimizer_has_the_bytes_of_the_memory_table() -> None:
    totals: dict[tuple[str, str], str] = {}
    for formats, names, *_, total, _ in table("docs/memory.md", "format"):
        for name in names.split(", "):
            stem, _, suffixes = name.rstrip("]").partition("[")
            for suffix in ("", *suffixes.split("/")):
                totals |= {(form, stem + suffix): f"{float(total):.1f}" for form in formats.split(", ")}
    for name, told, *_ in table("docs/which-optimizer.md", "optimizer"):
        optimizer = TRAINED[name].partition("@")[0]
        assert told == ", ".join(totals[form, optimizer] for form in ("bf16", "fp8_e5m2", "nvfp4")), name


def test_i21_how_to_read_a_verdict_reads_one_of_the_example(cells: list[dict[str, Any]]) -> None:
    (cell,) = (c for c in cells if (c["contrast"], c["regime"]) == ("M+Adam over AdamW + Kahan", "fp8-bf16"))
    told = percent(cell["mean"], cell["interval_family"])
    assert f"**{cell['contrast']} in `fp8-bf16`: {told}, {cell['verdict']}.**" in words("docs/verdicts.md")


class LongRuns:
    """Of the example's archive, by SciPy: differences of paired seeds in ln(perplexity), with 95% t-intervals."""

    def __init__(self) -> None:
        self.records = open_study(StudyPaths("long", ROOT / "results/example")).records

    def losses(self, masters: str, optimizer: str = "adamw", model: str = "400k") -> dict[int, float]:
        folder = self.records / f"runs/{model}/1x/{masters}-bf16/{optimizer}"
        found = {int(file.parent.name[4:]): json.loads(file.read_text()) for file in folder.glob("seed*/summary.json")}
        assert len(found) == (6 if model == "400k" else 3), folder
        return {seed: summary["val_loss"] for seed, summary in found.items()}

    def difference(self, a: dict[int, float], b: dict[int, float], sign: int) -> str:
        each = [a[seed] - b[seed] for seed in sorted(a)]
        interval = stats.t.interval(0.95, len(each) - 1, loc=statistics.mean(each), scale=stats.sem(each))
        return percent(statistics.mean(each), list(interval), sign)

    def costs(self, model: str) -> list[str]:
        reference = self.losses("fp32", model=model)
        return [self.difference(self.losses(masters, model=model), reference, -1) for masters in STORED]

    def gains(self, optimizer: str) -> list[str]:
        """Over AdamW."""
        return [self.gain(masters, optimizer) for masters in STORED]

    def gain(self, masters: str, optimizer: str) -> str:
        return self.difference(self.losses(masters), self.losses(masters, optimizer), 1)

    def rate(self, masters: str, model: str = "400k") -> float:
        file = self.records / f"tuning/{model}/{masters}-bf16/adamw/selected.yaml"
        return yaml.safe_load(file.read_text())["values"]["lr"]


def test_i20_the_readme_has_the_gains_that_the_runs_of_the_long_study_give() -> None:
    runs = LongRuns()
    rows = {label: cells for label, *cells in table("README.md", "weights stored in")}
    assert rows.pop("AdamW loses, against fp32 weights") == runs.costs("400k")
    assert rows == {f"gain of {name}": runs.gains(optimizer) for name, optimizer in list(TRAINED.items())[1:]}
    assert f"With fp32 weights M+Adam gains {runs.gain('fp32', 'm-plus-adam')} over AdamW." in words("README.md")


def test_i20_the_readme_has_what_adamw_loses_by_length_and_the_rates_that_it_takes() -> None:
    runs = LongRuns()
    models = {"500": "400k-500", "1,000": "400k-1000", "2,000": "400k", "4,000": "400k-4000"}
    rows = {label: cells for label, *cells in table("README.md", "updates")}
    assert rows == {label: runs.costs(model) for label, model in models.items()}
    fp32 = [runs.rate("fp32", model) for model in models.values()]
    assert fp32 == sorted(fp32, reverse=True)
    low = sorted(runs.rate(masters, "400k-4000") for masters in STORED)
    told = f"with fp32 weights falls from {fp32[0]:g} at 500 updates to {fp32[-1]:g} at 4,000, "
    assert f"{told}where the formats below take {low[0]:g} to {low[-1]:g}" in words("README.md")


def test_i20_which_optimizer_has_the_rates_of_adamw_and_the_search_that_is_not_bracketed() -> None:
    runs, text = LongRuns(), words("docs/which-optimizer.md")
    (low,) = {runs.rate(masters) for masters in STORED}
    assert f"a rate of {runs.rate('fp32'):g} with float32 weights and of {low:g} in the other four regimes" in text
    searches = {
        file.parent: yaml.safe_load(file.read_text()) for file in runs.records.glob("tuning/*/*/*/selected.yaml")
    }
    (open_ended,) = (folder for folder, search in searches.items() if not all(search["bracketed"].values()))
    assert (open_ended.name, open_ended.parent.name) == ("m-plus-adam-sr", "nvfp4-bf16")
    assert (
        f"Of {len(searches)} searches, one ended without a worse neighbour: that of M+Adam + SR in `nvfp4-bf16`."
        in text
    )


# --- citation --------------------------------------------------------------------------------------------------------


def test_the_readme_cites_what_citation_cff_has() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    entry, (paper,) = (ROOT / "README.md").read_text(encoding="utf-8").partition("```bibtex")[2], cff["references"]
    people = " and ".join(f"{person['family-names']}, {person['given-names']}" for person in paper["authors"])
    for part in (people, paper["url"], str(paper["year"]), cff["version"], paper["title"].partition(":")[2].strip()):
        assert f"{part}}}" in entry


# --- words -----------------------------------------------------------------------------------------------------------


def test_the_glossary_is_in_order() -> None:
    named = [row[0].strip("*").lower() for row in table("docs/glossary.md", "word")]
    assert len(named) > 30
    assert named == sorted(set(named))


def test_i21_the_readme_names_the_defaults_that_are_not_torchs() -> None:
    options = inspect.signature(MPlusAdam).parameters
    (beta1, beta2), eps, decay = (options[name].default for name in ("betas", "eps", "weight_decay"))
    assert f"(betas {beta1} and {beta2}, eps {eps:g}, decay {decay})" in words("README.md")
    assert f"(betas {beta1} and {beta2}, eps {eps:g}, weight decay {decay})" in words("docs/faq.md")


# --- single updates --------------------------------------------------------------------------------------------------


def test_i20_the_readme_has_the_shares_of_updates_that_survive_at_60m() -> None:
    with (ROOT / "results/example/60m-probes/paper/tables/updates.csv").open(encoding="utf-8") as file:
        rows = {(row["optimizer"], row["branch"], row["regime"]): row for row in csv.DictReader(file)}

    def shares(optimizer: str, branch: str, column: str = "survive") -> list[str]:
        found = (rows[optimizer, branch, f"{masters}-bf16"][column] for masters in ("bf16", "fp8", "nvfp4"))
        return [f"{100 * float(share):.2g}%" for share in found]

    def spread(optimizer: str, branch: str, column: str = "survive") -> str:
        return "{}, {} and {}".format(*shares(optimizer, branch, column))

    text, main = words("README.md"), "m-plus-adam"
    told = "{} change the stored weight in bf16, {} in FP8 and {} in NVFP4".format(*shares("adamw", "additive"))
    told += f". Of the updates of M+Adam's multiplicative branch it is {spread(main, 'multiplicative')}"
    assert f"projections {told}, of its additive branch {spread(main, 'additive')}." in text
    largest = [
        spread(name, branch, "survive_largest") for name, branch in ((main, "multiplicative"), ("adamw", "additive"))
    ]
    assert f"AdamW's updates change {largest[1]}, and those of the multiplicative branch {largest[0]}." in text
    relative = shares(f"{main}-relative", "multiplicative")
    assert relative[1:] == ["0%", "0%"]
    assert f"changes {relative[0]} in bf16 and nothing in FP8 and NVFP4" in text
    seeds = {(row["optimizer"] in ("adamw", main), row["seeds"]) for row in rows.values()}
    assert seeds == {(True, "3"), (False, "1")}
    assert "three seeds (one for the relative form)" in text
