"""Verdicts from run folders: pairs, divergence, missing runs, rates, related regimes, looks, diagnostics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis_fakes import FakeStudy
from claims_samples import claims_study, give, judged, verdicts

from mpadam.analysis.claims.cells import related_regime
from mpadam.analysis.claims.report import claims_content, claims_table
from mpadam.analysis.claims.verdicts import CellVerdict
from mpadam.analysis.collect import collect
from mpadam.analysis.render import RENDERERS
from mpadam.cli import main
from mpadam.study.grid import TuningKey

PLACE = {"model": "tiny", "budget": 1, "regime": "bf16-bf16"}
WIGGLE = (0.0, 0.002, -0.001, 0.001, -0.002)


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    """AdamW at ln(perplexity) 4.0 everywhere, M+Adam 0.05 below; a seed moves both alike, and each a bit by itself."""
    study = claims_study(tmp_path / "results")
    for regime in study.config.regimes:
        for entry, level in (("adamw", 4.0), ("m-plus-adam", 3.95)):
            sign = 1 if entry == "adamw" else -0.5
            values = {seed: level + 0.1 * seed + sign * noise for seed, noise in enumerate(WIGGLE)}
            give(study, values, **{**PLACE, "regime": regime, "optimizer": entry})
    return study


def cell_of(study: FakeStudy, name: str, regime: str = "bf16-bf16", contrast: str | None = None) -> CellVerdict:
    (found,) = [
        one
        for one in judged(study, name).cells
        if one.sample.regime == regime and contrast in (None, one.sample.contrast)
    ]
    return found


def test_differences_are_paired_by_seed(study: FakeStudy) -> None:
    """What a seed adds to both cancels: the spread is that of the differences."""
    found = cell_of(study, "1")
    assert list(found.sample.values.values()) == pytest.approx([0.05 + 1.5 * noise for noise in WIGGLE])
    assert found.verdict == "supported"
    assert found.mean == pytest.approx(0.05)
    assert len(found.sample.runs) == 10
    assert found.sample.cell.folder == "tiny/1x/bf16-bf16/m-plus-adam"


def test_cells_are_those_that_the_study_has(study: FakeStudy) -> None:
    """The paper's masters below fp32, without shadows; every cell counts in Holm's correction."""
    found = judged(study, "1")
    assert [one.sample.regime for one in found.cells] == ["bf16-bf16", "fp8-bf16", "nvfp4-bf16"]
    assert {one.family_size for one in found.cells} == {3}
    assert found.verdict == "supported"
    assert judged(study, "5-budget").verdict == "not run"  # one budget
    assert judged(study, "betas").reason == "the study has no such runs or measurements"


def test_diverged_run_counts_as_a_loss_and_is_never_dropped(study: FakeStudy) -> None:
    study.diverge(**PLACE, optimizer="m-plus-adam", seed=2)
    found = cell_of(study, "1")
    assert found.n == 5
    assert found.sample.values[2] == pytest.approx(4.0 + 0.2 + WIGGLE[2] - math.log(512))
    assert (found.verdict, found.reason) == ("inconclusive", "a run diverged")
    assert found.sample.diverged == {2: ("m-plus-adam",)}


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
    assert cell_of(study, "1").sample.values[2] == 0.0


def test_missing_run_leaves_its_seed_out_and_the_cell_without_a_verdict(study: FakeStudy) -> None:
    study.remove(**PLACE, optimizer="adamw", seed=3)
    found = cell_of(study, "1")
    assert (found.n, found.sample.missing, found.verdict) == (4, (3,), "inconclusive")
    assert found.reason == "4 of 5 seeds are in; no verdict before all are"


def test_refused_run_counts_as_missing(study: FakeStudy) -> None:
    study.edit_summary({"hash": "0" * 16}, **PLACE, optimizer="adamw", seed=0)
    assert cell_of(study, "1").sample.missing == (0,)


def test_n_2_of_a_study_gives_no_verdict(tmp_path: Path) -> None:
    study = claims_study(tmp_path / "two", seeds=[0, 1])
    runs = [one for one in verdicts(study).judged if one.claim.metric.kind in ("perplexity", "trend")]
    assert {cell.verdict for one in runs for cell in one.cells} == {"inconclusive"}
    assert {one.verdict for one in runs} == {"inconclusive", "not run"}


def test_not_bracketed_rates_forbid_a_verdict(study: FakeStudy) -> None:
    move_best_to_the_edge(study, "adamw")
    found = cell_of(study, "1")
    assert (found.verdict, found.sample.edges) == ("not bracketed", ("adamw: lr",))
    move_best_to_the_edge(study, "m-plus-adam")
    twin = cell_of(study, "twin")  # takes its rates from M+Adam
    assert (twin.verdict, twin.sample.edges) == ("not bracketed", ("m-plus-adam: lr",))
    assert cell_of(study, "1", "fp8-bf16").verdict == "supported"


def move_best_to_the_edge(study: FakeStudy, entry: str) -> None:
    """The chosen trial says that it is the last of its range: run.yaml does not change."""
    path = study.paths.selected(TuningKey("tiny", "bf16-bf16", entry))
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "bracketed": {"lr": False}}))


def test_unequal_tuning_is_flagged(study: FakeStudy) -> None:
    assert cell_of(study, "1").sample.flags == ()
    assert cell_of(study, "twin").sample.flags == ("additive-twin: rates of m-plus-adam",)


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
    assert cell_of(study, "1").sample.flags == (ranges.replace("1e-3", "0.001"), "trials of 50% of a run")
    flags = cell_of(study, "2").sample.flags
    assert flags[:2] == ("adamw-sr: rates given", "trials: adamw-sr 0, m-plus-adam 3")


def test_best_and_median_of_the_sweeps_stand_beside_the_seeds(study: FakeStudy) -> None:
    path = study.paths.selected(TuningKey("tiny", "bf16-bf16", "m-plus-adam"))
    content = yaml.safe_load(path.read_text())
    for trial, loss in zip(content["trials"], (5.2, 4.9, 5.3), strict=True):
        trial["val_loss"] = loss
    path.write_text(yaml.safe_dump(content))
    sweep = cell_of(study, "1").sample.sweep
    assert (sweep.best, sweep.median) == pytest.approx((5.0 - 4.9, 5.002 - 5.2))
    assert cell_of(study, "twin").sample.sweep is None
    assert judged(study, "d-draws").verdict == "supported"  # in the other cells the best trials are alike, so no gain


def test_trials_that_diverged_have_no_median(study: FakeStudy) -> None:
    path = study.paths.selected(TuningKey("tiny", "bf16-bf16", "adamw"))
    content = yaml.safe_load(path.read_text())
    for trial in (content["trials"][0], content["trials"][2]):
        trial |= {"status": "diverged", "val_loss": None}
    path.write_text(yaml.safe_dump(content))
    sweep = cell_of(study, "1").sample.sweep
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
    assert cell_of(study, "3").reason.startswith("its premise is not")


def test_trend_is_the_slope_over_ordered_masters(study: FakeStudy) -> None:
    for regime, gain in (("bf16-bf16", 0.02), ("fp8-bf16", 0.05), ("nvfp4-bf16", 0.08)):
        values = {s: 4.0 - gain + 0.1 * s + n / 2 for s, n in enumerate(WIGGLE)}
        give(study, values, **{**PLACE, "regime": regime}, optimizer="m-plus-adam")
    found = cell_of(study, "4", "*-bf16")
    assert found.sample.contrast == "bf16 < fp8 < nvfp4"
    assert found.mean == pytest.approx(0.03)
    assert found.verdict == "supported"
    assert found.sample.cell.folder == "tiny/1x/nvfp4-bf16/m-plus-adam"


def test_drift_and_shadow_compare_regimes_that_differ_in_one_thing(study: FakeStudy) -> None:
    drift = [cell for cell in judged(study, "drift").cells if cell.sample.contrast.startswith("AdamW")]
    assert [cell.sample.regime for cell in drift] == ["nvfp4-bf16"]
    assert any("nvfp4s-bf16" in run for run in drift[0].sample.runs)
    shadow = judged(study, "shadow").cells
    assert {cell.sample.regime for cell in shadow} == {"fp8-bf16"}
    assert all(any("fp8-bf16-kept" in run for run in cell.sample.runs) for cell in shadow)


def test_fields_without_a_meaning_do_not_keep_regimes_apart(study: FakeStudy) -> None:
    """The reference of FP8 masters is the fp32 regime, whatever its block size says."""
    config = study.config
    assert related_regime(config, "fp8-bf16-kept", {"masters": "fp32"}) == "fp32-bf16"
    assert related_regime(config, "fp8-bf16", {"shadow": "persistent"}) == "fp8-bf16-kept"
    assert related_regime(config, "bf16-bf16", {"masters": "bf16"}) is None
    assert related_regime(config, "bf16-bf16", {"compute": "fp8"}) is None


# --- looks and diagnostics -------------------------------------------------------------------------------------------


def write_looks(study: FakeStudy, entry: str, looks: Callable[[int], list[dict[str, Any]]]) -> None:
    """Looks of the five runs of a cell in bf16-bf16, made from their seeds."""
    for seed in study.config.seeds:
        labels = {**PLACE, "optimizer": entry, "seed": seed}
        spec = {"training": {"steps": 50}, "optimizer": {"state_dtype": "bf16"}}
        study.edit_summary({"spec": spec, "hyperparameters": {"beta2": 0.98}}, **labels)
        lines = "".join(json.dumps(line) + "\n" for line in looks(seed))
        (study.folder(**labels) / "probes.jsonl").write_text(lines)


def look(step: int, **parts: Any) -> dict[str, Any]:
    """A line of probes.jsonl with these parts of it."""
    measures = {"cosine": 0.5, "at_least": 0.1, "at_most": 0.1}
    line = {"step": step, "loss": {"before": 5.0, "after": 4.9}, "survival": {}, "staleness": {}}
    return {**line, "descent": {"all": {"additive": measures, "log2": measures}}, **parts}


def test_absent_looks_are_not_run(study: FakeStudy) -> None:
    assert {judged(study, name).verdict for name in ("10", "c", "survival", "stale")} == {"not run"}


def test_survival_is_counted_among_the_largest_weights_of_projections(study: FakeStudy) -> None:
    """The top bin holds 10 of 100 weights of attention; bins below, embeddings and zeros do not count."""

    def counts(top: int) -> dict[str, list[int]]:
        return {"intended": [0, 85, 10], "survived": [0, 80, top]}

    def looks(seed: int) -> list[dict[str, Any]]:
        attention = {"bins": ["zero", -6, -2], "weights": [5, 85, 10], "additive": counts(1)}
        embedding = {"intended": [1000], "survived": [0]}
        survival = {
            "attention": {**attention, "multiplicative": counts(6 + seed // 2)},
            "embedding": {"bins": [-2], "weights": [1000], "additive": embedding, "multiplicative": embedding},
        }
        return [look(50, survival=survival)]

    write_looks(study, "m-plus-adam", looks)
    found = judged(study, "survival")
    (one,) = [cell for cell in found.cells if cell.sample.regime == "bf16-bf16"]
    assert list(one.sample.values.values()) == pytest.approx([0.5, 0.5, 0.6, 0.6, 0.7])
    assert one.verdict == "supported"
    assert found.verdict == "inconclusive"  # regimes in which nothing was looked at
    assert "not run: tiny 1x fp8-bf16" in found.reason


def test_looks_are_averaged_over_a_run_by_what_they_counted(study: FakeStudy) -> None:
    losses = [{"before": 5.0, "after": after} for after in (5.1, 4.9, 4.9)]
    write_looks(study, "m-plus-adam", lambda _: [look(10 * k, loss=loss) for k, loss in enumerate(losses)])
    states = [{"v": {"entries": 50, "due": due, "stale": stale}} for due, stale in ((30, 15), (10, 1), (0, 0))]
    write_looks(study, "adamw", lambda _: [look(10 * k, staleness=state) for k, state in enumerate(states)])
    assert cell_of(study, "10").mean == pytest.approx(2 / 3)
    assert cell_of(study, "10").verdict == "contradicted"
    assert cell_of(study, "stale", contrast="AdamW").mean == pytest.approx(0.4)
    assert {cell.verdict for cell in judged(study, "c").cells if cell.sample.regime == "bf16-bf16"} == {"supported"}


def test_looks_of_a_diverged_run_do_not_count(study: FakeStudy) -> None:
    write_looks(study, "m-plus-adam", lambda _: [look(10)])
    study.diverge(**PLACE, optimizer="m-plus-adam", seed=4)
    assert cell_of(study, "10").reason == "4 of 5 seeds are in; no verdict before all are"


def write_fit(study: FakeStudy, errors: dict[tuple[str, str], list[float]], edges: list[str]) -> None:
    folder = study.paths.output / "diagnostics" / "matrix-fitting"
    folder.mkdir(parents=True)
    tasks = ("sign errors", "zero weights", "small weights", "large weights")
    choices = [
        {
            **{"method": method, "rates": rates},
            "tasks": {task: {"not_bracketed": edges if method == "madam" else [], "final_errors": e} for task in tasks},
        }
        for (method, rates), e in errors.items()
    ]
    (folder / "results.json").write_text(json.dumps({"choices": choices}))
    sweeps = [f"{task},madam,{lr},,0,{1.0 if task == 'zero weights' else lr}\n" for task in tasks for lr in (0.1, 0.2)]
    (folder / "sweeps.csv").write_text("task,method,lr,lr_mult,seed,error\n" + "".join(sweeps))


BEST, ONE = "best per task", "one for all tasks"


def test_matrix_fitting_is_paired_by_matrix_and_keeps_to_bracketed_rates(study: FakeStudy) -> None:
    errors = {
        ("adamw", BEST): [0.010, 0.011, 0.009],
        ("madam", BEST): [0.10, 0.105, 0.095],
        ("m-plus-adam", ONE): [0.011, 0.012, 0.010],
        ("m-plus-adam-unnormalized", ONE): [0.012, 0.0125, 0.0108],
    }
    write_fit(study, errors, ["lr"])
    fails = {cell.sample.where: cell for cell in judged(study, "9-fails").cells}
    assert fails["zero weights"].verdict == "supported"  # the same error at every rate: the edge hides nothing
    assert fails["sign errors"].verdict == "not bracketed"
    assert fails["large weights"].mean < 0
    both = judged(study, "9-both")
    assert {cell.sample.contrast for cell in both.cells} == {
        "M+Adam (one rate for all) over AdamW or Madam (best rates)"
    }
    assert both.verdict == "supported"  # AdamW is the better one of the two, so Madam's edge does not matter
    assert judged(study, "b").verdict == "contradicted"


def test_ticks_of_table_1_are_counted_by_format(study: FakeStudy) -> None:
    folder = study.paths.output / "diagnostics" / "capabilities"
    folder.mkdir(parents=True)
    header = "format,optimizer,write_back,updates_to_leave_zero,updates_to_change_sign,lost_from,lost_everywhere\n"
    good = "bf16,adamw,nearest,1,9,0.5,False\nbf16,madam,nearest,,,,False\nbf16,m-plus-adam,nearest,1,9,,False\n"
    bad = good.replace("bf16", "nvfp4").replace("nearest,,,,False", "nearest,,,,True")
    (folder / "capabilities.csv").write_text(header + good + bad)
    found = judged(study, "9-table")
    assert [(cell.sample.where, cell.verdict) for cell in found.cells] == [
        ("bf16", "supported"),
        ("nvfp4", "contradicted"),
    ]
    assert found.cells[1].reason == "not so: multiplicative updates are not lost at large |w|"


def test_growth_of_the_multiplicative_step_is_a_slope(study: FakeStudy) -> None:
    folder = study.paths.output / "diagnostics" / "survival-grid"
    folder.mkdir(parents=True)
    sizes = [0.02 * 2**k for k in range(6)]
    rows = [f"bf16,m-plus-adam,multiplicative,{w},{0.004 * w**0.9}" for w in sizes]
    rows += [f"fp8_e5m2,m-plus-adam,multiplicative,{w},0.004" for w in sizes] + ["bf16,adamw,both,1,1"]
    (folder / "survival.csv").write_text("format,optimizer,part,magnitude,mean_step\n" + "\n".join(rows))
    found = judged(study, "a")
    assert [cell.mean for cell in found.cells] == pytest.approx([0.9, 0.0], abs=1e-9)
    assert [cell.verdict for cell in found.cells] == ["contradicted", "supported"]


def test_widths_of_rates_are_shown_and_never_decided_from_one_seed(study: FakeStudy) -> None:
    found = cell_of(study, "6")
    assert (found.verdict, found.reason) == ("inconclusive", "n = 1 < 3 seeds")
    assert found.mean == 0.0
    assert found.sample.flags == (
        "the region of m-plus-adam reaches the end of the trials",
        "the region of adamw reaches the end of the trials",
    )


# --- the paper's numbers, the files, the command ---------------------------------------------------------------------


def test_the_papers_number_stands_beside_its_own_model_alone(tmp_path: Path) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2736, "layers": 24, "heads": 16, "steps_1x": 10}
    models = {"350m": shape, "60m": {**shape, "layers": 2}}
    study = claims_study(tmp_path / "big", models=models, tokenizer={"source": "bpe", "vocab_size": 32000})
    study.paths.manifest.unlink()
    cells = {one.sample.where: one.sample.reported for one in judged(study, "1").cells}
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
    table = claims_table(verdicts(study), collected)
    (row,) = [row for row in table.rows if [e.text for e in row[:3]] == ["1", "M+Adam over AdamW", "tiny 1x bf16-bf16"]]
    assert [entry.text for entry in row[3:7]] == ["5", "div.", "", ""]
    assert row[-1].text == "m-plus-adam diverged at seed 2"
    assert "a fraction of the paper's smallest" in " ".join(table.notes)
    for render in RENDERERS.values():
        assert "nan" not in render(table).lower().split()


def test_the_command_writes_every_file_and_prints_the_hash(
    study: FakeStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results)]
    assert main(["claims", *arguments]) == 0
    printed = capsys.readouterr().out
    content = json.loads((study.paths.root / "claims.json").read_text())
    assert f"claims.yaml {content['claims_sha256']}" in printed
    assert "supported      M+Adam beats AdamW (3 cells: 3 supported)" in printed
    cell = content["claims"][0]["cells"][0]
    assert cell["seeds"] == [0, 1, 2, 3, 4]
    assert len(cell["runs"]) == 10
    assert all((study.paths.root / run).is_dir() for run in cell["runs"])
    low, high = cell["interval_family"]
    assert low < cell["interval_95"][0] < cell["mean"] < cell["interval_95"][1] < high
    assert cell["p"] < cell["p_holm"] < 0.05
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


def test_T6_a_study_without_a_run_has_verdicts_too(tmp_path: Path) -> None:
    study = claims_study(tmp_path / "none")
    for folder in ("runs", "tuning"):
        (study.paths.root / folder).rename(study.paths.root / f"no-{folder}")
    assert {one.verdict for one in verdicts(study).judged} == {"not run"}
    assert main(["claims", "--config", str(study.config_file), "--results", str(study.paths.results)]) == 0
