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
PAPER = ROOT / "results/example/pilot/paper"
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
    mean, low, high = (f"{sign * 100 * (1 - math.exp(-sign * x)):+.1f}%" for x in (mean, *interval))
    return f"{mean} ({low} to {high})"


def test_i21_which_optimizer_has_the_differences_and_verdicts_of_the_example(cells: list[dict[str, Any]]) -> None:
    rows = list(table("docs/which-optimizer.md", "comparison"))
    assert len(rows) == 10
    for comparison, regime, difference, verdict in rows:
        found = [cell for cell in cells if cell["contrast"] == comparison and cell["regime"] == regime]
        assert (difference, verdict) in [(percent(c["mean"], c["interval_family"]), c["verdict"]) for c in found]


def test_i21_which_optimizer_has_what_low_precision_costs_adamw(cells: list[dict[str, Any]]) -> None:
    costs = {
        cell["regime"]: cell["premise"]
        for cell in cells
        if cell.get("premise") and cell["premise"]["needs"] == "what low precision costs AdamW"
    }
    for regime, cost, shown in (rows := list(table("docs/which-optimizer.md", "regime"))):
        premise = costs[regime]
        assert cost == percent(premise["mean"], premise["interval_95"], -1)
        assert shown == ("yes" if premise["interval_95"][0] > 0 else "no")
    assert len(rows) == 8


def test_i21_which_optimizer_has_the_perplexities_of_the_example() -> None:
    with (PAPER / "tables/write-backs.csv").open() as file:
        means = {(line["regime"], line["optimizer"]): line for line in csv.DictReader(file) if line["val_ppl_mean"]}
    rows = list(table("docs/which-optimizer.md", "weights"))
    for row in rows[::2]:
        (regime,) = re.findall(r"\(`?([a-z0-9]+-bf16)", row[0])
        lines = [means[regime, name] for name in ("adamw", "adamw-sr", "adamw-kahan", "m-plus-adam")]
        assert row[2:] == [f"{float(line['val_ppl_mean']):.2f} ± {float(line['val_ppl_sd']):.2f}" for line in lines]
    assert len(rows) == 6
    text = (ROOT / "docs/which-optimizer.md").read_text(encoding="utf-8")
    tables = "".join((PAPER / f"tables/{name}.md").read_text() for name in ("table2", "write-backs"))
    assert [told for told in re.findall(r"\d+\.\d+ ± \d+\.\d+", text) if f"{told} (n=6)" not in tables] == []


def test_i21_which_optimizer_has_the_bytes_of_the_memory_table() -> None:
    names = {"adamw": "adamw[-sr", "kahan": "adamw-kahan", "m": "m-plus-adam[-sr], m-plus-adam-relative[-sr]"}
    totals = [(line[0], line[1], line[6]) for line in table("docs/memory.md", "format")]
    for at, form in enumerate(("bf16", "fp8_e5m2", "nvfp4")):
        row = list(table("docs/which-optimizer.md", "weights"))[2 * at + 1]
        plain, kahan, m = (
            next(f"{float(total):.1f}" for kind, optimizers, total in totals if form in kind and name in optimizers)
            for name in names.values()
        )
        assert row[2:] == [plain, plain, kahan, m]


def test_i21_how_to_read_a_verdict_reads_one_of_the_example(cells: list[dict[str, Any]]) -> None:
    (cell,) = (c for c in cells if (c["contrast"], c["regime"]) == ("M+Adam over AdamW + Kahan", "nvfp4-bf16"))
    told = percent(cell["mean"], cell["interval_family"])
    assert f"**{cell['contrast']} in `nvfp4-bf16`: {told}, {cell['verdict']}.**" in words("docs/verdicts.md")


LONG_ROWS = {
    "M+Adam gains over AdamW": "m-plus-adam",
    "AdamW + SR gains": "adamw-sr",
    "AdamW + Kahan gains": "adamw-kahan",
    "AdamW + ECO gains": "adamw-eco",
    "AdamW + ECO + SR gains": "adamw-eco-sr",
    "M+Adam + SR gains": "m-plus-adam-sr",
    "M+Adam at AdamW's `lr` gains": "m-plus-adam@adamw_lr",
}


def test_i20_the_readme_has_what_the_finished_runs_of_the_long_study_say() -> None:
    """By SciPy from the archived runs: differences of paired seeds in ln(perplexity), with 95% t-intervals."""
    runs = open_study(StudyPaths("long", ROOT / "results/example")).records / "runs/400k/1x"
    regimes = ("bf16", "fp8", "fp8e4m3", "nvfp4")

    def losses(masters: str, optimizer: str) -> list[float]:
        files = [runs / f"{masters}-bf16" / optimizer / f"seed{seed}/summary.json" for seed in range(6)]
        return [json.loads(file.read_text())["val_loss"] for file in files if file.exists()]

    def difference(a: list[float], b: list[float], sign: int) -> str:
        if len(a) < 6 or len(b) < 6:
            return "not run yet"
        each = [x - y for x, y in zip(a, b, strict=True)]
        interval = stats.t.interval(0.95, len(each) - 1, loc=statistics.mean(each), scale=stats.sem(each))
        return percent(statistics.mean(each), list(interval), sign)

    adamw = {masters: losses(masters, "adamw") for masters in (*regimes, "fp32")}
    rows = {label: cells for label, *cells in table("README.md", "weights stored in")}
    told = rows.pop("AdamW loses, against fp32 weights")
    assert told == [difference(adamw[masters], adamw["fp32"], -1) for masters in regimes]
    assert rows.keys() == LONG_ROWS.keys()
    for label, optimizer in LONG_ROWS.items():
        gains = [difference(adamw[masters], losses(masters, optimizer), 1) for masters in regimes]
        assert rows[label] == gains, label
    fp32 = difference(adamw["fp32"], losses("fp32", "m-plus-adam"), 1)
    assert f"With fp32 weights M+Adam gains {fp32} over AdamW." in words("README.md")


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
