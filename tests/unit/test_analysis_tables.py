"""Table 2 and the hyper-parameters: what cells say, by hand, and every format they are written in."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from analysis_fakes import FakeStudy, fake_study, perplexity, study_content
from exhibits_made import maker

from mpadam.analysis.cells import Cell, CellKey, cells
from mpadam.analysis.collect import collect
from mpadam.analysis.statistics import estimate
from mpadam.analysis.texts import gain_text, number_text, perplexity_text
from mpadam.exhibits.kit.table import Entry, Table, to_csv, to_json, to_latex, to_markdown, to_text, write_table
from mpadam.exhibits.table2 import table2

ADAMW = CellKey("tiny", 1, "bf16-bf16", "adamw")
MPLUS = CellKey("tiny", 1, "bf16-bf16", "m-plus-adam")

hyperparameters = maker("hyperparameters")


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return fake_study(tmp_path / "results", seeds=[0, 1, 2], budgets=[1])


def find(study: FakeStudy, key: CellKey) -> Cell:
    return next(cell for cell in cells(collect(study.config, study.paths).runs) if cell.key == key)


def make_table2(study: FakeStudy) -> Table:
    return table2(collect(study.config, study.paths))


def test_mean_spread_and_gain_are_those_of_the_seeds(study: FakeStudy) -> None:
    adamw, mplus = ([perplexity(study.key(**vars(key), seed=s)) for s in range(3)] for key in (ADAMW, MPLUS))
    cell = find(study, MPLUS)
    assert cell.perplexity is not None
    assert cell.perplexity.mean == pytest.approx(statistics.mean(mplus))
    assert cell.perplexity.sd == pytest.approx(statistics.stdev(mplus))
    assert cell.gain is not None
    ratio = statistics.geometric_mean(m / a for a, m in zip(adamw, mplus, strict=True))
    assert cell.gain.mean == pytest.approx(1 - ratio)
    expected = f"{statistics.mean(mplus):.2f} ± {statistics.stdev(mplus):.2f} (n=3)"
    assert perplexity_text(cell) == expected
    assert expected in to_text(make_table2(study))
    assert find(study, ADAMW).gain is None


def test_T6_a_cell_with_a_diverged_run_has_no_mean_and_no_gain(study: FakeStudy) -> None:
    study.diverge(**vars(ADAMW), seed=1)
    adamw, mplus = find(study, ADAMW), find(study, MPLUS)
    assert (adamw.perplexity, mplus.gain) == (None, None)
    assert perplexity_text(adamw) == "div. (1 of 3)"
    assert gain_text(mplus) == "div."
    assert perplexity_text(mplus).endswith("(n=3)")


def test_T6_missing_seeds_are_counted_and_gains_pair_what_is_left(study: FakeStudy) -> None:
    study.remove(**vars(ADAMW), seed=0)
    adamw = [perplexity(study.key(**vars(ADAMW), seed=s)) for s in (1, 2)]
    mplus = [perplexity(study.key(**vars(MPLUS), seed=s)) for s in (1, 2)]
    assert perplexity_text(find(study, ADAMW)).endswith("(n=2 of 3)")
    gain = 1 - statistics.geometric_mean(m / a for a, m in zip(adamw, mplus, strict=True))
    assert gain_text(find(study, MPLUS)) == f"{100 * gain:+.1f}% (n=2)"


def test_T6_one_seed_has_no_spread(study: FakeStudy) -> None:
    for seed in (0, 2):
        study.remove(**vars(MPLUS), seed=seed)
    assert perplexity_text(find(study, MPLUS)) == f"{perplexity(study.key(**vars(MPLUS), seed=1)):.2f} (n=1 of 3)"


def test_T6_a_cell_without_runs_is_missing_and_a_refused_run_is_counted(study: FakeStudy) -> None:
    for seed in range(3):
        study.remove(**vars(MPLUS), seed=seed)
    study.edit_summary({"hash": "0" * 16, "val_ppl": 1.0}, **vars(ADAMW), seed=0)
    assert perplexity_text(find(study, MPLUS)) == "missing (0 of 3)"
    assert gain_text(find(study, MPLUS)) == "–"
    assert perplexity_text(find(study, ADAMW)).endswith("(n=2 of 3, 1 refused)")


def test_T6_the_tidy_file_has_counts_and_empty_cells_for_what_does_not_exist(study: FakeStudy) -> None:
    study.diverge(**vars(ADAMW), seed=1)
    rows = list(csv.DictReader(io.StringIO(to_csv(make_table2(study)))))
    row = next(r for r in rows if all(r[k] == str(v) for k, v in vars(ADAMW).items()))
    assert (row["asked"], row["n"], row["diverged"]) == ("3", "2", "1")
    assert [row[f"val_ppl_{name}"] for name in ("mean", "sd", "low", "high")] == [""] * 4
    assert len(rows) == 8


def test_a_cell_that_the_study_does_not_ask_for_is_empty(tmp_path: Path) -> None:
    grids = [{"name": "a", "models": ["tiny"]}, {"name": "b", "models": ["small"], "budgets": [1]}]
    table = make_table2(fake_study(tmp_path / "results", grids=grids))
    assert [entry.text for entry in table.rows[-1][5:7]] == ["", ""]
    assert table.rows[-1][0].text == "small"
    assert "nan" not in to_text(table).lower()


def test_every_number_knows_the_cell_behind_it(study: FakeStudy) -> None:
    table = make_table2(study)
    text = perplexity_text(find(study, MPLUS))
    assert next(e.text for row in table.rows for e in row if e.cell == MPLUS) == text
    rows = json.loads(to_json(table))["rows"]
    folder = next(entry["cell"] for row in rows for entry in row if entry["text"] == text)
    assert study.paths.root / "runs" / folder / "seed0" == study.folder(**vars(MPLUS), seed=0)


def test_a_study_without_the_baseline_has_no_gains_and_says_so(tmp_path: Path) -> None:
    study = fake_study(tmp_path / "results", grids=[{"name": "a", "optimizers": ["m-plus-adam"]}])
    table = make_table2(study)
    assert {row[4].text for row in table.rows} == {"–"}
    assert any("no optimizer entry 'adamw'" in note for note in table.notes)


def test_the_yardstick_counts_the_runs_below_it(study: FakeStudy) -> None:
    study.edit_summary({"val_loss": 5.5, "val_ppl": math.exp(5.5)}, **vars(ADAMW), seed=0)
    assert make_table2(study).notes[-1].endswith("perplexity 221.41; 23 of 24 completed runs are below.")


def test_the_order_is_that_of_the_style_map(tmp_path: Path) -> None:
    """Reference first, AdamW before M+Adam, whatever the order in the configuration; models as configured."""
    entries = study_content()["optimizers"]
    optimizers = {"zeta": {"optimizer": "adamw"}, "m-plus-adam": entries["m-plus-adam"], "adamw": entries["adamw"]}
    regimes = {name: {"masters": name[:4], "compute": "bf16"} for name in ("bf16-bf16", "fp32-bf16")}
    table = make_table2(fake_study(tmp_path / "results", optimizers=optimizers, regimes=regimes, seeds=[0]))
    names = [tuple(entry.text for entry in row[:3]) for row in table.rows]
    expected = [("fp32-bf16", o) for o in ("AdamW", "M+Adam", "zeta")]
    assert [name[1:] for name in names[:3]] == expected
    assert [name[0] for name in names] == ["tiny"] * 6 + ["small"] * 6


# --- formats ---------------------------------------------------------------------------------------------------------


def nasty() -> Table:
    return Table(
        name="t",
        title="A_title 100%",
        caption="a & b ± c",
        header=("k|ey", "50% gain_x"),
        rows=((Entry("a#1"), Entry("x_1 ± 2%")), (Entry("a#1"), Entry("{~^\\$}")), (Entry("b"), Entry("–"))),
        headings=1,
        data=pd.DataFrame({"a": ["x,y"], "b": [None]}),
    )


def test_latex_escapes_everything_and_every_row_has_all_columns() -> None:
    text = to_latex(nasty())
    assert r"x\_1 $\pm$ 2\%" in text
    assert r"\{\textasciitilde{}\textasciicircum{}\textbackslash{}\$\}" in text
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in lines] == [1] * 4
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert re.search(r"(?<!\\)[#%_]", text.replace(r"\$", "")) is None


def test_markdown_has_one_bar_a_column() -> None:
    lines = [line for line in to_markdown(nasty()).splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3] * 5


def test_text_is_aligned(study: FakeStudy) -> None:
    text = to_text(make_table2(study))
    start = text.splitlines().index("-" * len(text.splitlines()[2]))
    widths = {len(line) for line in text.splitlines()[2 : start + 9]}
    assert len(widths) == 1
    assert max(widths) < 120


def test_write_table_writes_every_format_the_same_twice(study: FakeStudy, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write_table(make_table2(study), tmp_path / "a")]
    second = write_table(make_table2(study), tmp_path / "b")
    assert [path.name for path in second] == [f"table2.{suffix}" for suffix in ("csv", "md", "tex", "txt", "json")]
    assert [path.read_bytes() for path in second] == first


# --- hyper-parameters ------------------------------------------------------------------------------------------------


def hyper_row(study: FakeStudy, *, optimizer: str) -> dict[str, str]:
    table = hyperparameters(collect(study.config, study.paths))
    row = next(row for row in table.rows if row[2].text == optimizer)
    return dict(zip(table.header, (entry.text for entry in row), strict=True))


def test_selected_given_and_default_values_and_the_edge(study: FakeStudy) -> None:
    adamw, mplus = hyper_row(study, optimizer="AdamW"), hyper_row(study, optimizer="M+Adam")
    assert (adamw["lr"], adamw["lr_mult"], adamw["weight_decay"]) == ("0.003", "", "0.1")
    assert (mplus["lr"], mplus["lr_mult"], mplus["weight_decay"]) == ("0.003", "0.004 (edge)", "0.1 (default)")
    assert (adamw["trials"], adamw["loss"]) == ("3", "5.000")


def test_T6_diverged_trials_are_counted_and_a_tuning_of_only_such_says_so(study: FakeStudy) -> None:
    path = study.paths.selected(collect(study.config, study.paths).tunings[0].key)
    content = yaml.safe_load(path.read_text())
    content["trials"][2].update(status="diverged", val_loss=None)
    path.write_text(yaml.safe_dump(content))
    assert hyper_row(study, optimizer="AdamW")["trials"] == "3 (1 div.)"
    for trial in content["trials"]:
        trial.update(status="diverged", val_loss=None)
    path.write_text(yaml.safe_dump(content))
    assert hyper_row(study, optimizer="AdamW")["loss"] == "all div."


def test_further_trials_are_told_apart_and_do_not_make_tuning_unequal(tmp_path: Path) -> None:
    """Issue 17, B4: the allowance is the same for every optimizer, what it was used for is not."""
    optimizers = {"adamw": {"search": {"lr": [1e-3, 3e-3, 9e-3]}}, "adamw-sr": {"search": {"lr": [3e-3, 9e-3, 2.7e-2]}}}
    tuning = {"mode": "search", "trials": 3, "extend": 2}
    study = fake_study(
        tmp_path / "results", optimizers=optimizers, tuning=tuning, grids=[{"name": "all", "models": ["tiny"]}]
    )
    table = hyperparameters(collect(study.config, study.paths))
    assert (table.notes, {entry.text for row in table.rows for entry in row[3:4]}) == ((), {"3", "3 + 1"})
    assert hyper_row(study, optimizer="AdamW + SR")["lr"] == "0.003"  # 0.001 was tried further
    key = next(t for t in collect(study.config, study.paths).tunings if t.key.optimizer == "adamw-sr").key
    content = yaml.safe_load(study.paths.selected(key).read_text())
    study.paths.selected(key).write_text(yaml.safe_dump({**content, "further": {"allowed": 9, "made": 1}}))
    assert any("allows 2 further trials, not 9" in line for line in collect(study.config, study.paths).refusals)


def test_a_tuning_that_is_not_there_shows_as_missing(study: FakeStudy) -> None:
    study.paths.selected(collect(study.config, study.paths).tunings[0].key).unlink()
    row = hyper_row(study, optimizer="AdamW")
    assert (row["trials"], row["lr"], row["weight_decay"]) == ("missing", "?", "0.1")


def test_fixed_values_need_no_tuning(tmp_path: Path) -> None:
    study = fake_study(
        tmp_path / "results",
        tuning={"mode": "fixed"},
        optimizers={"adamw": {"values": {"lr": 8e-5}}, "m-plus-adam": {"values": {"max_relative_step": None}}},
    )
    assert hyper_row(study, optimizer="AdamW")["trials"] == "given"
    assert hyper_row(study, optimizer="AdamW")["lr"] == "8e-5"
    assert hyper_row(study, optimizer="M+Adam")["max_relative_step"] == "none"
    assert collect(study.config, study.paths).count("completed") == 32


def test_unequal_tuning_and_borrowed_values_are_flagged(tmp_path: Path) -> None:
    tuning = {"mode": "search", "trials": 3, "transfer": {"models": {"small": "tiny"}}}
    study = fake_study(tmp_path / "results", tuning=tuning)
    table = hyperparameters(collect(study.config, study.paths))
    assert {row[0].text for row in table.rows} == {"tiny"}
    assert table.notes == ("small takes the values that were chosen for tiny.",)
    [first, *_] = read = collect(study.config, study.paths).tunings
    short = replace(read[1], trials=read[1].trials[:2])
    uneven = replace(collect(study.config, study.paths), tunings=(first, short))
    assert "Unequal tuning: between 2 and 3 trials; compare with care." in hyperparameters(uneven).notes


def test_a_model_outside_the_grid_is_not_mentioned(tmp_path: Path) -> None:
    tuning = {"mode": "search", "trials": 3, "transfer": {"models": {"small": "tiny"}}}
    study = fake_study(tmp_path / "results", tuning=tuning, grids=[{"name": "a", "models": ["tiny"]}])
    assert hyperparameters(collect(study.config, study.paths)).notes == ()


def test_the_tidy_file_has_every_hyper_parameter_and_where_it_came_from(study: FakeStudy) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(hyperparameters(collect(study.config, study.paths))))))
    mine = [r for r in rows if (r["model"], r["regime"], r["optimizer"]) == ("tiny", "bf16-bf16", "m-plus-adam")]
    found = {r["hyperparameter"]: (r["value"], r["from"], r["bracketed"]) for r in mine}
    assert found["lr"] == ("0.003", "selected", "yes")
    assert found["lr_mult"] == ("0.004", "selected", "no")
    assert found["beta2"] == ("0.98", "default", "")


@pytest.mark.parametrize(("value", "text"), [(8e-5, "8e-5"), (1e-20, "1e-20"), (0.003, "0.003"), (None, "none")])
def test_numbers_can_be_typed_again(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_estimates_of_cells_are_exact_for_equal_seeds() -> None:
    assert perplexity_text(Cell(ADAMW, {0: 2.0, 1: 2.0}, (), (), (), estimate([2.0, 2.0]))) == "2.00 ± 0.00 (n=2)"
