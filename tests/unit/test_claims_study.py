"""Verdicts from run folders: pairs, divergence, missing runs, rates, related regimes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from analysis_fakes import FakeStudy
from claims_samples import PLACE, WIGGLE, cell_of, claims_study, gained_study, give, judged, raise_cost, verdicts
from exhibits_made import from_folder

from mpadam.analysis.collect import collect
from mpadam.claims.cells import related_regime
from mpadam.claims.examine import claims_content, write_claims
from mpadam.cli import main
from mpadam.exhibits.kit.table import RENDERERS
from mpadam.study.grid import TuningKey


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return gained_study(tmp_path / "results")


def test_differences_are_paired_by_seed(study: FakeStudy) -> None:
    """What a seed adds to both cancels: the spread is that of the differences."""
    found = cell_of(study, "1")
    assert list(found.values.values()) == pytest.approx([0.05 + 1.5 * noise for noise in WIGGLE])
    assert found.verdict == "supported"
    assert found.mean == pytest.approx(0.05)
    assert len(found.runs) == 10
    assert found.cell.folder == "tiny/1x/bf16-bf16/m-plus-adam"


def test_cells_are_those_that_the_study_has(study: FakeStudy) -> None:
    """The paper's masters below fp32, without shadows; every cell counts in Holm's correction."""
    found = judged(study, "1")
    assert [one.regime for one in found.cells] == ["bf16-bf16", "fp8-bf16", "nvfp4-bf16", "nvfp4s-bf16"]
    assert {one.family_size for one in found.cells} == {4}
    assert found.verdict == "supported"
    assert judged(study, "5-budget").verdict == "not run"  # one budget
    assert judged(study, "betas").reason == "the study has no such runs or measurements"


def test_diverged_run_counts_as_a_loss_and_is_never_dropped(study: FakeStudy) -> None:
    study.diverge(**PLACE, optimizer="m-plus-adam", seed=2)
    found = cell_of(study, "1")
    assert found.n == 5
    assert found.values[2] == pytest.approx(4.0 + 0.2 + WIGGLE[2] - math.log(512))
    assert (found.verdict, found.reason) == ("inconclusive", "a run diverged")
    assert found.diverged == {2: ("m-plus-adam",)}


def test_diverged_in_every_seed_contradicts(study: FakeStudy) -> None:
    for seed in study.config.seeds:
        study.diverge(**PLACE, optimizer="m-plus-adam", seed=seed)
    assert cell_of(study, "1").verdict == "contradicted"
    assert judged(study, "1").verdict == "contradicted"


def test_diverged_rival_speaks_for_the_other(study: FakeStudy) -> None:
    for seed in study.config.seeds:
        study.diverge(**PLACE, optimizer="adamw", seed=seed)
    assert cell_of(study, "1").verdict == "supported"
    study.diverge(**PLACE, optimizer="m-plus-adam", seed=0)
    assert cell_of(study, "1").reason == "both sides diverged at seed 0"


def test_diverged_run_is_never_scored_better_than_one_that_completed(study: FakeStudy) -> None:
    give(study, {2: 9.0}, **PLACE, optimizer="adamw")
    study.diverge(**PLACE, optimizer="m-plus-adam", seed=2)
    assert cell_of(study, "1").values[2] == 0.0


def test_missing_run_leaves_its_seed_out_and_the_cell_without_a_verdict(study: FakeStudy) -> None:
    study.remove(**PLACE, optimizer="adamw", seed=3)
    found = cell_of(study, "1")
    assert (found.n, found.missing, found.verdict) == (4, (3,), "inconclusive")
    assert found.reason == "4 of 5 seeds are in; no verdict before all are"


def test_refused_run_counts_as_missing(study: FakeStudy) -> None:
    study.edit_summary({"hash": "0" * 16}, **PLACE, optimizer="adamw", seed=0)
    assert cell_of(study, "1").missing == (0,)


def test_n_2_of_a_study_gives_no_verdict(tmp_path: Path) -> None:
    study = claims_study(tmp_path / "two", seeds=[0, 1])
    runs = [one for one in verdicts(study).judged if one.claim.metric.kind in ("perplexity", "trend")]
    fair = {cell.verdict for one in runs for cell in one.cells if not cell.untestable}
    assert fair == {"inconclusive"}
    assert {one.verdict for one in runs} == {"inconclusive", "not testable here", "not run"}


def test_not_bracketed_rates_forbid_a_verdict(study: FakeStudy) -> None:
    move_best_to_the_edge(study, "adamw")
    found = cell_of(study, "1")
    assert (found.verdict, found.edges) == ("not bracketed", ("adamw: lr",))
    move_best_to_the_edge(study, "m-plus-adam")
    twin = cell_of(study, "twin")  # takes its rates from M+Adam
    assert (twin.verdict, twin.edges) == ("not testable here", ("m-plus-adam: lr",))
    assert cell_of(study, "1", "fp8-bf16").verdict == "supported"


def move_best_to_the_edge(study: FakeStudy, entry: str) -> None:
    """The trial with the next larger rate is no worse than the chosen one: run.yaml does not change."""
    path = study.paths.selected(TuningKey("tiny", "bf16-bf16", entry))
    content = yaml.safe_load(path.read_text())
    content["trials"][content["best"] + 1]["val_loss"] = content["trials"][content["best"]]["val_loss"]
    path.write_text(yaml.safe_dump(content))


def test_unequal_tuning_is_flagged(study: FakeStudy) -> None:
    assert cell_of(study, "1").flags == ()
    assert cell_of(study, "twin").flags == ("additive-twin: rates of m-plus-adam",)


def test_unequal_budgets_of_trials_and_ranges_are_flagged(tmp_path: Path) -> None:
    optimizers = {
        "adamw": {"search": {"lr": [1e-3, 3e-3, 1e-2]}},
        "m-plus-adam": {"values": {"lr_mult": 4e-3}, "search": {"lr": [2e-3, 3e-3, 4e-3]}},
        "adamw-sr": {"values": {"lr": 3e-3}},
    }
    tuning = {"mode": "search", "trials": 3, "steps_fraction": 0.5}
    grids = [{"name": "all", "regimes": ["bf16-bf16"]}]
    study = claims_study(tmp_path / "unequal", optimizers=optimizers, tuning=tuning, grids=grids)
    ranges = "ranges: adamw lr 1e-3 to 0.01 (3); m-plus-adam lr 0.002 to 0.004 (3)"
    assert cell_of(study, "1").flags == (ranges.replace("1e-3", "0.001"), "trials of 50% of a run")
    flags = cell_of(study, "2").flags
    assert flags[:2] == ("adamw-sr: rates given", "trials: adamw-sr 0, m-plus-adam 3")


def test_best_and_median_of_the_sweeps_are_next_to_the_seeds(study: FakeStudy) -> None:
    path = study.paths.selected(TuningKey("tiny", "bf16-bf16", "m-plus-adam"))
    content = yaml.safe_load(path.read_text())
    for trial, loss in zip(content["trials"], (5.2, 4.9, 5.3), strict=True):
        trial["val_loss"] = loss
    path.write_text(yaml.safe_dump(content))
    sweep = cell_of(study, "1").sweep
    assert (sweep.best, sweep.median) == pytest.approx((5.0 - 4.9, 5.002 - 5.2))
    assert cell_of(study, "twin").sweep is None
    assert judged(study, "d-draws").verdict == "supported"  # in the other cells the best trials are alike, so no gain


def test_trials_that_diverged_have_no_median(study: FakeStudy) -> None:
    path = study.paths.selected(TuningKey("tiny", "bf16-bf16", "adamw"))
    content = yaml.safe_load(path.read_text())
    for trial in (content["trials"][0], content["trials"][2]):
        trial |= {"status": "diverged", "val_loss": None}
    path.write_text(yaml.safe_dump(content))
    sweep = cell_of(study, "1").sweep
    assert sweep.best is not None
    assert sweep.median is None


# --- contrasts over several regimes ----------------------------------------------------------------------------------


def test_recovered_gap_is_a_linear_contrast_under_its_premise(study: FakeStudy) -> None:
    """AdamW 4.0, fp32 3.97, M+Adam 3.95: more than all of the gap. Without a gap nothing can be recovered."""
    give(
        study,
        {s: 3.97 + 0.1 * s + n for s, n in enumerate(WIGGLE)},
        **{**PLACE, "regime": "fp32-bf16"},
        optimizer="adamw",
    )
    found = cell_of(study, "3")
    assert found.mean == pytest.approx(0.05 - 0.5 * 0.03)
    assert found.verdict == "supported"
    give(
        study,
        {s: 4.0 + 0.1 * s - n for s, n in enumerate(WIGGLE)},
        **{**PLACE, "regime": "fp32-bf16"},
        optimizer="adamw",
    )
    found = cell_of(study, "3")
    assert found.verdict == "not testable here"
    assert found.reason == "what low precision costs AdamW is not shown: +0.0000 (-0.0039 to +0.0039)"


def test_trend_is_the_slope_over_ordered_masters(study: FakeStudy) -> None:
    costs = {"bf16-bf16": 0.0, "fp8-bf16": 0.1, "nvfp4-bf16": 0.2, "nvfp4s-bf16": 0.2}
    gains = {"bf16-bf16": 0.02, "fp8-bf16": 0.05, "nvfp4-bf16": 0.09, "nvfp4s-bf16": 0.07}
    assert cell_of(study, "4", "*-bf16").verdict == "not testable here"  # AdamW is alike everywhere
    raise_cost(study, costs, noise=0.0)
    for regime, gain in gains.items():
        values = {s: 4.0 + costs[regime] - gain + 0.1 * s + n / 2 for s, n in enumerate(WIGGLE)}
        give(study, values, **{**PLACE, "regime": regime}, optimizer="m-plus-adam")
    found = cell_of(study, "4", "*-bf16")
    assert found.contrast == "bf16 < fp8 < nvfp4, nvfp4s"
    assert found.mean == pytest.approx(np.polyfit([0, 1, 2, 2], [*gains.values()], 1)[0])
    assert found.premise_spread.mean == pytest.approx(0.1)
    assert found.verdict == "supported"
    assert found.cell.folder == "tiny/1x/nvfp4s-bf16/m-plus-adam"


# --- what can be tested at all ---------------------------------------------------------------------------------------


def test_b1_the_name_of_a_format_covers_its_variants(tmp_path: Path) -> None:
    """e4m3 is FP8, and NVFP4 with a sticky scale is NVFP4, in every claim that names them."""
    regimes = {f"{m}-bf16": {"masters": m, "compute": "bf16"} for m in ("fp32", "bf16", *WIDE)}
    grids = [{"name": "main", "optimizers": ["adamw", "m-plus-adam", "adamw-sr"]}]
    study = claims_study(tmp_path / "wide", regimes=regimes, grids=grids, seeds=[0])
    for name in ("1", "3", "precision"):
        assert [one.regime for one in judged(study, name).cells] == ["bf16-bf16", *(f"{m}-bf16" for m in WIDE)]
    assert [one.regime for one in judged(study, "d-tricks").cells] == [f"{m}-bf16" for m in WIDE]
    assert judged(study, "4").cells[0].contrast == "bf16 < fp8, fp8e4m3 < nvfp4, nvfp4s"
    assert {one.regime for one in judged(study, "drift").cells} == {"nvfp4-bf16"}  # it names the one scale


WIDE = ("fp8", "fp8e4m3", "nvfp4", "nvfp4s")


def test_b2_a_claim_about_precision_is_tested_where_precision_costs_adamw_something(study: FakeStudy) -> None:
    found = cell_of(study, "2")
    assert found.verdict == "not testable here"
    assert found.reason == "what low precision costs AdamW is not shown: +0.0000 (+0.0000 to +0.0000)"
    assert cell_of(study, "1").verdict == "supported"  # which of the two is better is another question
    raise_cost(study, {"bf16-bf16": 0.1})
    assert cell_of(study, "2").verdict != "not testable here"
    assert cell_of(study, "precision").verdict == "supported"
    assert cell_of(study, "precision", "fp8-bf16").verdict == "not testable here"
    raise_cost(study, {"bf16-bf16": -0.1})  # low precision is better: nothing to remedy either
    assert cell_of(study, "2").verdict == "not testable here"


def test_b2_a_study_without_fp32_weights_cannot_test_such_a_claim(tmp_path: Path) -> None:
    grids = [{"name": "all", "regimes": ["bf16-bf16"], "optimizers": ["adamw", "m-plus-adam", "adamw-sr"]}]
    found = cell_of(claims_study(tmp_path / "low", grids=grids), "2")
    assert found.verdict == "not testable here"
    assert found.reason == "the study has no runs that show what low precision costs AdamW"


def test_b2_a_run_that_diverged_in_the_premise_alone_hides_no_difference(study: FakeStudy) -> None:
    for seed in study.config.seeds:
        study.diverge(**PLACE, optimizer="adamw", seed=seed)
    found = cell_of(study, "2")
    assert found.verdict != "not testable here"  # diverging is a cost
    assert found.diverged == {}
    assert found.flags[0] == "adamw diverged at seed 0"


def test_b3_trials_that_are_shorter_than_runs_say_nothing_about_chance(tmp_path: Path) -> None:
    tuning = {"mode": "search", "trials": 3, "steps_fraction": 0.5}
    study = claims_study(tmp_path / "short", tuning=tuning, grids=[{"name": "all", "regimes": ["bf16-bf16"]}])
    for seed in study.config.seeds:
        study.edit_summary({"val_loss": 3.0, "val_ppl": math.exp(3.0)}, **PLACE, optimizer="m-plus-adam", seed=seed)
    found = judged(study, "d-draws")
    assert found.verdict == "not testable here"
    assert {one.reason for one in found.cells} == {"a trial has 50% of the updates of a run"}


def test_b4_borrowed_rates_get_no_verdict_against_tuned_ones(study: FakeStudy) -> None:
    raise_cost(study, {"bf16-bf16": 0.1})
    for name, entry in (("8", "m-plus-adam-sr"), ("7", "m-plus-adam-apollo-e"), ("twin", "additive-twin")):
        found = cell_of(study, name)
        assert found.verdict == "not testable here"
        assert found.reason == f"{entry} in bf16-bf16 uses the rates of m-plus-adam"


def test_b4_rates_borrowed_in_the_same_way_are_equal_terms(tmp_path: Path) -> None:
    """AdamW and M+Adam both at the rates of another regime; but with fp32 weights AdamW was tuned."""
    transfer = {"regimes": {"fp8-bf16": "bf16-bf16", "nvfp4-bf16": "bf16-bf16"}}
    tuning = {"mode": "search", "trials": 3, "transfer": transfer}
    grids = [{"name": "main", "optimizers": ["adamw", "m-plus-adam"]}]
    study = claims_study(tmp_path / "borrowed", tuning=tuning, grids=grids)
    assert cell_of(study, "1", "fp8-bf16").untestable == ()
    found = cell_of(study, "3", "fp8-bf16")
    assert found.reason == "adamw and m-plus-adam in fp8-bf16 use the rates of bf16-bf16"
    assert cell_of(study, "drift", "nvfp4-bf16", "AdamW, amax over sticky").verdict == "not testable here"
    assert cell_of(study, "1", "fp8-bf16").verdict != "not testable here"


def test_b4_given_rates_are_not_tuned_ones(tmp_path: Path) -> None:
    optimizers = {"adamw": {"values": {"lr": 3e-3}}, "m-plus-adam": {"search": {"lr": [1e-3, 3e-3, 1e-2]}}}
    tuning = {"mode": "search", "trials": 3}
    study = claims_study(tmp_path / "given", optimizers=optimizers, tuning=tuning, grids=[{"name": "all"}])
    assert cell_of(study, "1").reason == "adamw in bf16-bf16 uses rates that were given"


def test_drift_and_shadow_compare_regimes_that_differ_in_one_thing(study: FakeStudy) -> None:
    drift = [cell for cell in judged(study, "drift").cells if cell.contrast.startswith("AdamW")]
    assert [cell.regime for cell in drift] == ["nvfp4-bf16"]
    assert any("nvfp4s-bf16" in run for run in drift[0].runs)
    shadow = judged(study, "shadow").cells
    assert {cell.regime for cell in shadow} == {"fp8-bf16"}
    assert all(any("fp8-bf16-kept" in run for run in cell.runs) for cell in shadow)


def test_fields_without_a_meaning_do_not_keep_regimes_apart(study: FakeStudy) -> None:
    """The reference of FP8 masters is the fp32 regime, whatever its block size says."""
    config = study.config
    assert related_regime(config, "fp8-bf16-kept", {"masters": "fp32"}) == "fp32-bf16"
    assert related_regime(config, "fp8-bf16", {"shadow": "persistent"}) == "fp8-bf16-kept"
    assert related_regime(config, "bf16-bf16", {"masters": "bf16"}) is None
    assert related_regime(config, "bf16-bf16", {"compute": "fp8"}) is None


# --- the paper's numbers, the files, the command ---------------------------------------------------------------------


def test_the_papers_number_is_next_to_its_own_model_alone(tmp_path: Path) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2736, "layers": 24, "heads": 16, "steps_1x": 10}
    models = {"350m": shape, "60m": {**shape, "layers": 2}}
    study = claims_study(tmp_path / "big", models=models, tokenizer={"source": "bpe", "vocab_size": 32000})
    study.paths.manifest.unlink()
    cells = {one.where: one.reported for one in judged(study, "1").cells}
    reported = cells["350m 1x bf16-bf16"]
    assert (reported.adamw, reported.m_plus_adam, reported.grade) == (19.156, 16.607, "Q")
    assert reported.value == pytest.approx(math.log(19.156 / 16.607))
    assert {where for where, found in cells.items() if found} == {"350m 1x bf16-bf16"}
    content = claims_content(verdicts(study), collect(study.config, study.paths))
    assert content["directions_only"] is False
    paper = content["claims"][0]["cells"][0]["paper"]
    assert paper["difference"] == pytest.approx(content["claims"][0]["cells"][0]["mean"] - reported.value)


def test_the_table_shows_divergence_as_such_and_has_every_format(study: FakeStudy) -> None:
    study.diverge(**PLACE, optimizer="m-plus-adam", seed=2)
    collected = collect(study.config, study.paths)
    write_claims(verdicts(study), collected)
    table = from_folder("claims", collected.paths.output)
    (row,) = [row for row in table.rows if [e.text for e in row[:3]] == ["1", "M+Adam over AdamW", "tiny 1x bf16-bf16"]]
    assert [entry.text for entry in row[3:7]] == ["5", "div.", "", ""]
    assert row[-1].text == "m-plus-adam diverged at seed 2"
    assert "a fraction of the paper's smallest" in " ".join(table.notes)
    for render in RENDERERS.values():
        assert "nan" not in render(table).lower().split()


def test_the_command_names_what_it_refuses_and_judges_nothing_without_the_data(
    study: FakeStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["claims", "--config", str(study.config_file), "--results", str(study.paths.results)]
    study.edit_summary({"val_ppl": 1.5}, **PLACE, seed=0)
    assert main(arguments) == 3
    assert "refused" in (told := capsys.readouterr().err)
    assert "val_ppl 1.5 is not exp(val_loss)" in told
    study.paths.manifest.unlink()
    assert main(arguments) == 2
    assert "nothing is judged" in capsys.readouterr().err


def test_the_command_writes_every_file_and_prints_the_hash(
    study: FakeStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results)]
    assert main(["claims", *arguments]) == 0
    printed = capsys.readouterr().out
    content = json.loads((study.paths.root / "claims.json").read_text())
    assert f"SHA-256 of the claims: {content['claims_sha256']}" in printed
    assert "supported          M+Adam beats AdamW (4 cells: 4 supported)" in printed
    cell = content["claims"][0]["cells"][0]
    assert cell["seeds"] == [0, 1, 2, 3, 4]
    assert len(cell["runs"]) == 10
    assert all((study.paths.root / run).is_dir() for run in cell["runs"])
    low, high = cell["interval_family"]
    assert low < cell["interval_95"][0] < cell["mean"] < cell["interval_95"][1] < high
    assert cell["p"] < cell["p_holm"] < 0.05
    assert cell["p_sign_flip"] == cell["p_sign_flip_least"] == 0.0625
    table = (study.paths.root / "tables/claims.txt").read_text()
    assert "exact p" in table
    assert "With 5 seeds an exact p cannot be below 0.0625" in table
    files = {path.name for folder in ("tables", "figures") for path in (study.paths.root / folder).iterdir()}
    assert files == {f"claims.{s}" for s in ("csv", "md", "tex", "txt", "json", "pdf", "svg", "png")}
    first = (study.paths.root / "claims.json").read_bytes(), (study.paths.root / "figures/claims.svg").read_bytes()
    assert main(["claims", *arguments, "--pooled"]) == 0
    assert json.loads((study.paths.root / "claims.json").read_text())["pooled"] is True
    assert main(["claims", *arguments]) == 0
    assert first == (
        (study.paths.root / "claims.json").read_bytes(),
        (study.paths.root / "figures/claims.svg").read_bytes(),
    )


def test_i20_nothing_of_the_figure_of_claims_sticks_out_where_contrasts_have_long_names(tmp_path: Path) -> None:
    regimes = {f"{m}-bf16": {"masters": m, "compute": "bf16"} for m in ("fp32", "bf16", "fp8e4m3")}
    entries = ["adamw", "adamw-eco", "adamw-eco-sr", "m-plus-adam"]
    optimizers = {**{entry: {"search": {"lr": [1e-3, 3e-3, 1e-2]}} for entry in entries[:3]}, entries[3]: MULT}
    grids = [{"name": "main", "optimizers": entries}]
    study = claims_study(
        tmp_path / "eco", regimes=regimes, optimizers=optimizers, grids=grids, seeds=[0], tuning=SEARCHED
    )
    collected = collect(study.config, study.paths)
    write_claims(verdicts(study), collected)
    figure = from_folder("claims_figure", collected.paths.output).figure
    figure.draw_without_rendering()
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert "M+Adam in FP8 against AdamW + ECO + SR in bf16, fp8e4m3-bf16" in labels
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, axes.get_title(loc="left")


MULT = {"values": {"lr_mult": 4e-3}, "search": {"lr": [1e-3, 3e-3, 1e-2]}}
SEARCHED = {"mode": "search", "trials": 3}


def test_T6_a_study_without_a_run_has_verdicts_too(tmp_path: Path) -> None:
    study = claims_study(tmp_path / "none")
    for folder in ("runs", "tuning"):
        (study.paths.root / folder).rename(study.paths.root / f"no-{folder}")
    assert {one.verdict for one in verdicts(study).judged} == {"not run"}
    assert main(["claims", "--config", str(study.config_file), "--results", str(study.paths.results)]) == 0
