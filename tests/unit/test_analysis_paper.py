"""What else `all_paper` shows: sweeps, write-backs, ablations, Figures 4 and 6; runs as what they are (T6)."""

from __future__ import annotations

import math
import shutil
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from analysis_fakes import FakeStudy, fake_study, perplexity, study_content
from analysis_paper_fakes import FORMS, LEVELS, MAIN, PLACE, WRITE_BACKS, collected, paper_study
from exhibits_made import maker

from mpadam.analysis.ablations import ablations
from mpadam.analysis.collect import Collected
from mpadam.analysis.tunings import trial_perplexity
from mpadam.exhibits.kit.pictures import Picture, drawing
from mpadam.exhibits.kit.table import Table, to_text
from mpadam.exhibits.registry import needing
from mpadam.exhibits.source import source_of
from mpadam.exhibits.table2 import table2
from mpadam.study.grid import TuningKey

ablation_table, ablation_figure, write_back_table = map(maker, ("ablations", "ablations_figure", "write_backs"))
figure4_as_in_paper, figure4_all, figure6 = map(maker, ("figure4", "figure4_all", "figure6"))


def made(study: Collected, kind: type) -> list[Any]:
    """What the target makes of the runs, in the order of its page."""
    with drawing():
        found = [exhibit.make(source_of(study)) for exhibit in needing("runs", study.config, study.paths.view)]
    return [one for one in found if isinstance(one, kind)]


def tables(study: Collected) -> list[Table]:
    return made(study, Table)


def pictures(study: Collected) -> list[Picture]:
    return made(study, Picture)


ADAMW_TUNING = TuningKey("tiny", "bf16-bf16", "adamw")


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return paper_study(tmp_path / "results")


def row(table: Table, *names: str) -> dict[str, str]:
    """The texts of the one row with these headings, by column."""
    found = [r for r in table.rows if [entry.text for entry in r[: table.headings]] == list(names)]
    assert len(found) == 1
    return dict(zip(table.header, (entry.text for entry in found[0]), strict=True))


def edit_trials(study: FakeStudy, key: TuningKey, changes: list[dict[str, Any]]) -> None:
    path = study.paths.selected(key)
    content = yaml.safe_load(path.read_text())
    for trial, change in zip(content["trials"], changes, strict=True):
        trial.update(change)
    path.write_text(yaml.safe_dump(content))


def line_of(table: Table, text: str) -> str:
    return next(line for line in to_text(table).splitlines() if text in line)


# --- the sweep of Table 2 --------------------------------------------------------------------------------------------


def test_table_2_has_best_and_median_of_the_sweep(study: FakeStudy) -> None:
    edit_trials(study, ADAMW_TUNING, [{"val_loss": loss} for loss in (3.0, 2.0, 4.0)])
    found = row(table2(collected(study)), "tiny", "bf16-bf16", "AdamW")
    assert (found["sweep best"], found["sweep median"]) == (f"{math.exp(2):.2f}", f"{math.exp(3):.2f} (n=3)")


def test_T6_a_diverged_trial_counts_as_infinite(study: FakeStudy) -> None:
    div = {"status": "diverged", "val_loss": None}
    edit_trials(study, ADAMW_TUNING, [{"val_loss": 2.0}, div, div])
    table = table2(collected(study))
    found = row(table, "tiny", "bf16-bf16", "AdamW")
    assert (found["sweep best"], found["sweep median"]) == (f"{math.exp(2):.2f}", "div. (n=3)")
    cells = table.data[(table.data.model == "tiny") & (table.data.regime == "bf16-bf16")]
    assert cells[cells.optimizer == "adamw"]["sweep_median"].isna().all()


def test_rates_that_are_another_s_have_no_sweep(study: FakeStudy) -> None:
    found = row(table2(collected(study)), "tiny", "nvfp4-fp8", "AdamW")
    assert (found["sweep best"], found["sweep median"]) == ("–", "–")


def test_a_loss_too_large_for_a_perplexity_is_infinite() -> None:
    assert trial_perplexity({"status": "completed", "val_loss": 800.0}) == math.inf


def test_table_2_of_all_paper_has_the_paper_s_optimizers_and_the_fp32_lines(study: FakeStudy) -> None:
    first = tables(collected(study))[0]
    names = {tuple(entry.text for entry in r[1:3]) for r in first.rows}
    assert {optimizer for _, optimizer in names} == {"AdamW", "M+Adam"}
    assert names >= {("fp32-bf16", "AdamW"), ("fp32-fp8", "M+Adam")}


def test_without_all_paper_no_level_is_in_table_2_or_figure_4(study: FakeStudy) -> None:
    core = replace(collected(study), paths=replace(study.paths, view=""))
    assert "@" not in to_text(tables(core)[0])
    _, figure4 = pictures(core)
    assert figure4.name == "figure4"
    assert not any("@" in text.get_text() for text in figure4.figure.legends[0].get_texts())


# --- write-backs -----------------------------------------------------------------------------------------------------


def test_write_backs_stand_side_by_side_with_the_reference_and_the_gains(study: FakeStudy) -> None:
    table = write_back_table(collected(study))
    found = row(table, "tiny", "1x", "fp8-fp8")
    at = {"model": "tiny", "budget": 1}
    means = {
        entry: [perplexity(study.key(**at, regime="fp8-fp8", optimizer=entry, seed=s)) for s in (0, 1)]
        for entry in (*MAIN, *WRITE_BACKS)
    }
    fp32 = [perplexity(study.key(**at, regime="fp32-fp8", optimizer="adamw", seed=s)) for s in (0, 1)]
    assert found["AdamW, fp32 weights"].startswith(f"{statistics.mean(fp32):.2f} ±")
    assert found["M+Adam + Kahan"].startswith(f"{statistics.mean(means['m-plus-adam-kahan']):.2f} ±")
    ratio = statistics.geometric_mean(m / r for m, r in zip(means["m-plus-adam"], means["adamw-sr"], strict=True))
    assert found["M+Adam over AdamW + SR"] == f"{100 * (1 - ratio):+.1f}%"


def test_only_places_with_a_write_back_are_shown(study: FakeStudy) -> None:
    places = {tuple(e.text for e in r[:3]) for r in write_back_table(collected(study)).rows}
    sr = {(m, f"{b}x", "bf16-bf16") for m in ("tiny", "small") for b in (1, 2)}
    assert places == sr | {("tiny", "1x", "fp8-fp8")}


def test_T6_write_backs_that_diverged_or_are_missing_are_shown_as_such(study: FakeStudy) -> None:
    study.diverge(**PLACE, optimizer="adamw-sr", seed=1)
    for seed in (0, 1):
        study.remove(**PLACE, optimizer="adamw-kahan", seed=seed)
    study.remove(**PLACE, optimizer="m-plus-adam-sr", seed=0)
    found = row(write_back_table(collected(study)), "tiny", "1x", "bf16-bf16")
    assert found["AdamW + SR"] == "div. (1 of 2)"
    assert found["AdamW + Kahan"] == "missing (0 of 2)"
    assert found["M+Adam + SR"].endswith("(n=1 of 2)")
    assert "±" not in found["M+Adam + SR"]
    assert (found["M+Adam over AdamW + SR"], found["M+Adam over AdamW + Kahan"]) == ("div.", "–")


def test_a_study_without_write_backs_says_so(tmp_path: Path) -> None:
    found = collected(paper_study(tmp_path / "results", grids=[{"name": "a", "optimizers": ["adamw"]}]))
    assert write_back_table(found).notes == (
        "The study asks for no optimizer with stochastic rounding or Kahan's carry.",
    )
    assert ablation_table(found).notes == ("The study asks for no level of an ablation.",)


# --- ablations -------------------------------------------------------------------------------------------------------


def test_levels_stand_in_order_with_the_base_s_own_value_among_them(study: FakeStudy) -> None:
    found = {(a.entry): a for a in ablations(collected(study))}
    axes = found["m-plus-adam"].axes
    labels = {axis: [(level.label, level.is_base) for level in levels] for axis, levels in axes.items()}
    assert labels["beta2"] == [("0.9", False), ("0.98", True), ("0.999", False)]
    assert labels["lr"] == [("1e-4", False), ("0.003", True)], "the tuned rate is the base's own"
    assert labels["max_relative_step"] == [("0.75", True), ("none", False)]
    assert labels["warmup"] == [("0", False), ("0.2", True)]
    assert len(labels["form"]) == len(FORMS)
    betas = found["adamw"].axes["betas"]
    assert [level.label for level in betas] == ["0.87, 0.98", "0.9, 0.95"]


def test_a_level_is_held_against_the_base_at_the_same_seed(study: FakeStudy) -> None:
    table = ablation_table(collected(study))
    found = row(table, "tiny, 1x, bf16-bf16", "M+Adam", "beta2", "0.9")
    level, base = (
        perplexity(study.key(**PLACE, optimizer=entry, seed=0)) for entry in ("m-plus-adam@beta2_0", "m-plus-adam")
    )
    assert found["perplexity"] == f"{level:.2f} (n=1)"
    assert found["against base"] == f"{100 * (1 - level / base):+.1f}%"
    assert found["rates"] == "of base"
    assert row(table, "tiny, 1x, bf16-bf16", "M+Adam", "beta2", "0.98 *")["against base"] == ""


def test_T6_levels_that_diverged_or_are_missing_have_no_number(study: FakeStudy) -> None:
    study.diverge(**PLACE, optimizer="m-plus-adam@beta2_0", seed=0)
    study.remove(**PLACE, optimizer="m-plus-adam@beta2_1", seed=0)
    study.diverge(**PLACE, optimizer="additive-twin", seed=0)
    found = collected(study)
    table, picture = ablation_table(found), ablation_figure(found)
    where = ("tiny, 1x, bf16-bf16", "M+Adam", "beta2")
    assert row(table, *where, "0.9")["perplexity"] == "div. (1 of 1)"
    assert row(table, *where, "0.9")["against base"] == "div."
    assert row(table, *where, "0.999")["perplexity"] == "missing (0 of 1)"
    panel = next(axes for axes in picture.figure.axes if axes.get_xlabel() == r"$\beta_2$")
    curve = next(line for line in panel.get_lines() if len(line.get_xdata()) == 3)
    assert np.isfinite(np.asarray(curve.get_ydata(), dtype=float)).tolist() == [False, True, False]
    texts = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert {"a run diverged", "no result yet"} <= set(texts)


def test_the_ablation_figure_has_a_panel_an_axis_and_the_forms(study: FakeStudy) -> None:
    picture = ablation_figure(collected(study))
    assert len(picture.figure.axes) == len({"beta2", "clip", "lr", "warmup", "forms"})
    forms = picture.figure.axes[-1]
    assert [label.get_text() for label in forms.get_yticklabels()] == [
        "M+Adam",
        "M+Adam, relative",
        "M+Adam, Apollo-E",
        "Additive twin",
    ]
    assert "n = 1 to 2" in picture.caption


def test_every_level_of_the_shipped_configurations_changes_one_thing() -> None:
    from mpadam.analysis.ablations import changed_values
    from mpadam.study.load import load_study

    root = Path(__file__).parents[2]
    for overlays in ([], ["smoke"], ["one-gpu"]):
        config = load_study([root / "config.yaml", *(root / f"studies/{name}.yaml" for name in overlays)])
        levels = [entry for entry in config.optimizers if "@" in entry]
        assert len(levels) > 20
        for entry in levels:
            axis = entry.partition("@")[2]
            assert len(changed_values(config, entry)) == (2 if axis.startswith("betas") else 1), entry


# --- Figure 4 --------------------------------------------------------------------------------------------------------


def shown(picture: Picture) -> set[tuple[str, str]]:
    assert picture.data is not None
    return set(zip(picture.data["regime"], picture.data["optimizer"], strict=True))


def test_figure_4_as_in_the_paper_has_its_lines_and_no_others(study: FakeStudy) -> None:
    picture = figure4_as_in_paper(collected(study))
    paper = {(regime, entry) for regime in ("bf16-bf16", "bf16-fp8", "fp8-fp8") for entry in ("adamw", "m-plus-adam")}
    assert shown(picture) == paper | {("bf16-bf16", "adamw-sr")}
    assert [axes.get_title().split()[0] for axes in picture.figure.axes] == ["tiny", "small"]


def test_our_figure_4_splits_by_masters_with_the_reference_in_each(study: FakeStudy) -> None:
    picture = figure4_all(collected(study))
    titles = [axes.get_title() for axes in picture.figure.axes]
    assert titles == [f"{m}, {masters} weights" for masters in ("bf16", "fp8", "nvfp4") for m in ("tiny", "small")]
    lines = [line for line in picture.figure.axes[4].get_lines() if line.get_marker() == "o" and len(line.get_xdata())]
    assert len(lines) == 2, "AdamW in nvfp4-fp8 and in fp32-fp8"
    assert "AdamW with fp32 weights and the same compute is in each of them" in picture.caption
    assert shown(picture) >= {("nvfp4-fp8", "adamw"), ("fp32-bf16", "adamw")}


def test_a_single_budget_has_its_regimes_along_the_axis(tmp_path: Path) -> None:
    study = paper_study(tmp_path / "results", grids=[{"name": "a", "budgets": [1], "optimizers": list(MAIN)}])
    study.diverge(model="tiny", budget=1, regime="fp8-fp8", optimizer="adamw", seed=0)
    picture = figure4_all(collected(study))
    panel = next(axes for axes in picture.figure.axes if axes.get_title() == "tiny, fp8 weights, 1x")
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["fp32-bf16", "fp32-fp8", "fp8-bf16", "fp8-fp8"]
    crosses = [line for line in panel.get_lines() if line.get_marker() == "x" and len(line.get_xdata())]
    assert len(crosses) == 1


def test_i20_models_of_adamw_alone_have_no_panel_where_others_compare_optimizers(tmp_path: Path) -> None:
    grids = [
        {"name": "both", "budgets": [1], "models": ["tiny"], "optimizers": list(MAIN)},
        {"name": "length", "budgets": [1], "models": ["small"], "optimizers": ["adamw"]},
    ]
    study = paper_study(tmp_path / "results", grids=grids)
    assert {axes.get_title().split()[0] for axes in figure4_as_in_paper(collected(study)).figure.axes} == {"tiny"}
    assert {axes.get_title().split(",")[0] for axes in figure4_all(collected(study)).figure.axes} == {"tiny"}
    alone = paper_study(tmp_path / "alone", grids=grids[1:])
    assert {axes.get_title().split()[0] for axes in figure4_as_in_paper(collected(alone)).figure.axes} == {"small"}


# --- Figure 6 --------------------------------------------------------------------------------------------------------


def test_figure_6_shows_the_trials_adamw_above_and_m_plus_adam_below(study: FakeStudy) -> None:
    edit_trials(study, ADAMW_TUNING, [{"val_loss": loss} for loss in (3.0, 2.0, 4.0)])
    picture = figure6(collected(study))
    above, below = picture.figure.axes[0], picture.figure.axes[2]
    curve = next(line for line in above.get_lines() if len(line.get_xdata()) == 3)
    assert list(curve.get_xdata()) == [1e-3, 3e-3, 1e-2]
    assert list(curve.get_ydata()) == [3.0, 2.0, 4.0]
    assert len(below.patches) == 3 + 1, "a bar per trial, and the frame of the chosen one"
    assert [tick.get_text() for tick in below.get_xticklabels()] == ["0.001", "0.003", "0.01"]
    paired = below.child_axes[0]
    assert [tick.get_text() for tick in paired.get_xticklabels()] == ["0.004"] * 3
    assert above.get_ylim() == below.get_ylim()
    assert picture.data is not None
    assert len(picture.data) == 12


def test_the_ticks_of_figure_6_do_not_overlap_in_narrow_panels_of_many_rates(tmp_path: Path) -> None:
    """Issue 21 A: one tick per rate, or per second or third one, each with room for its label."""
    rates = [1e-5 * 2**k for k in range(18)]
    search = {"adamw": {"search": {"lr": rates}}, "m-plus-adam": {"search": {"lr": rates, "lr_mult": [4e-3]}}}
    models = {name: study_content()["models"]["tiny"] | {"steps_1x": 50 + k} for k, name in enumerate("abc")}
    grid = {"name": "one", "budgets": [1], "regimes": ["bf16-bf16"], "seeds": [0]}
    tuning = {"mode": "search", "trials": 18}
    study = fake_study(tmp_path / "results", models=models, optimizers=search, tuning=tuning, grids=[grid])
    figure = figure6(collected(study)).figure
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(boxes) == 9
        assert not any(box.overlaps(other) for box, other in pairwise(boxes))


def test_i20_figure_6_leaves_out_models_of_adamw_alone_unless_there_is_no_other(study: FakeStudy) -> None:
    study.paths.selected(TuningKey("small", "bf16-bf16", "m-plus-adam")).unlink()
    assert set(figure6(collected(study)).data["model"]) == {"tiny"}
    study.paths.selected(TuningKey("tiny", "bf16-bf16", "m-plus-adam")).unlink()
    assert set(figure6(collected(study)).data["model"]) == {"tiny", "small"}


def test_T6_diverged_trials_are_crosses_and_missing_tunings_say_so(study: FakeStudy) -> None:
    edit_trials(study, ADAMW_TUNING, [{}, {}, {"status": "diverged", "val_loss": None}])
    study.paths.selected(TuningKey("small", "bf16-bf16", "adamw")).unlink()
    picture = figure6(collected(study))
    crosses = [
        line for line in picture.figure.axes[0].get_lines() if line.get_marker() == "x" and len(line.get_xdata())
    ]
    assert [list(line.get_xdata()) for line in crosses] == [[1e-2]]
    assert [text.get_text() for text in picture.figure.axes[1].texts] == ["not tuned"]
    assert "diverged" in [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert picture.data is not None
    assert picture.data["val_loss"].isna().sum() == 1


# --- every state of a study ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["no runs", "no tunings", "nothing"])
def test_T6_everything_is_made_whatever_is_there(study: FakeStudy, state: str) -> None:
    if state in ("no runs", "nothing"):
        shutil.rmtree(study.paths.root / "runs")
    if state in ("no tunings", "nothing"):
        shutil.rmtree(study.paths.root / "tuning")
    found = collected(study)
    for table in tables(found):
        assert "nan" not in to_text(table).lower().split()
    for picture in pictures(found):
        if state == "nothing":
            picture.figure.draw_without_rendering()
        assert picture.caption
        assert picture.alt
    if state == "nothing":
        assert "missing" in line_of(tables(found)[0], "fp32-bf16")


def test_nothing_of_the_new_figures_sticks_out(study: FakeStudy) -> None:
    for picture in pictures(collected(study)):
        figure = picture.figure
        figure.draw_without_rendering()
        for box in [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]:
            assert box is not None
            assert min(box.x0, box.y0) >= -1, picture.name
            assert box.x1 <= figure.bbox.x1 + 1, picture.name
            assert box.y1 <= figure.bbox.y1 + 1, picture.name
        for axes in figure.axes:
            level = [text.get_window_extent() for text in axes.get_xticklabels() if not text.get_rotation()]
            assert not any(left.overlaps(right) for left, right in pairwise(level)), picture.name
        legend = figure.legends[0].get_window_extent()
        assert not any(legend.overlaps(axes.get_tightbbox()) for axes in figure.axes), picture.name


def test_levels_have_an_entry_each(study: FakeStudy) -> None:
    data = ablation_table(collected(study)).data
    assert set(LEVELS) | set(FORMS) <= set(data["optimizer"])
