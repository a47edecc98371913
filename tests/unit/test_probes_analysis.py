"""Probes of runs as a table and figures: each probe once, counts that add up, a panel for each regime."""

import json
import math

import pandas as pd
import pytest
from analysis_fakes import fake_study
from exhibits_made import maker
from matplotlib import image

from mpadam.analysis import probes as module
from mpadam.analysis.collect import collect
from mpadam.analysis.probes import COLUMNS, read_probes
from mpadam.cli import main
from mpadam.exhibits.descent import descent_means
from mpadam.exhibits.registry import needing
from mpadam.exhibits.staleness import stale_shares
from mpadam.exhibits.survival import survival_shares
from mpadam.study.grid import run_keys
from mpadam.study.load import ConfigError

KEY = ["model", "budget", "regime", "optimizer", "seed"]


def line(step, *, survived=400, weights=1000, branches=("additive",), fell=True, cosine=0.5, stale=30):
    """A probe with two roles: attention with weights at zero, in 2**-6 and in 2**-5, a norm with one at 1."""
    attention = {"bins": ["zero", -6, -5], "weights": [weights // 2, weights // 2, weights]}
    for branch in branches:
        counts = [0 if branch == "multiplicative" else weights // 2, weights // 2, weights]
        attention[branch] = {"intended": counts, "survived": [0, weights // 4, survived]}
    norm = {"bins": [0], "weights": [64], **{branch: {"intended": [64], "survived": [0]} for branch in branches}}
    measures = {"cosine": cosine, "at_least": 0.1, "at_most": 0.05}
    direction = {"additive": measures}
    if "multiplicative" in branches:
        direction |= {"ln": measures, "log2": measures, "undefined": 3}
    states = {"v": {"entries": 100, "due": 90, "stale": stale}}
    return {
        "step": step,
        "loss": {"before": 5.0, "after": 4.9 if fell else 5.2},
        "survival": {"attention": attention, "norm": norm},
        "descent": {"all": direction, "attention": direction},
        "staleness": states | ({"v_e": {"entries": 100, "due": 0, "stale": 0}} if "multiplicative" in branches else {}),
    }


BOTH = ("additive", "multiplicative", "both")


@pytest.fixture
def study(tmp_path):
    """One model and budget, two regimes, two seeds, looks at steps 10 and 20 of 50; a level at another beta2."""
    content = {
        "models": {"tiny": {"hidden_size": 32, "intermediate_size": 88, "layers": 2, "heads": 2, "steps_1x": 50}},
        "budgets": [1],
        "optimizers": {
            "adamw": {"values": {"lr": 1e-3}},
            "m-plus-adam": {"values": {"lr": 1e-3, "lr_mult": 4e-3}},
            "m-plus-adam@beta2_0": {"values": {"lr": 1e-3, "lr_mult": 4e-3, "beta2": 0.999}},
        },
        "tuning": {"mode": "fixed"},
        "training": {"global_batch_size": 8, "micro_batch_size": 8, "device": "cpu", "threads": 1, "probe_every": 10},
    }
    made = fake_study(tmp_path / "results", **content)
    for key in run_keys(made.config):
        beta2 = 0.999 if "@" in key.optimizer else 0.98
        spec = {"training": {"steps": 50}, "optimizer": {"state_dtype": "bf16"}}
        made.edit_summary({"spec": spec, "hyperparameters": {"beta2": beta2}}, **vars(key))
        branches = ("additive",) if key.optimizer == "adamw" else BOTH
        write(made, key, [line(10, branches=branches), line(20, branches=branches, survived=600, fell=key.seed == 0)])
    return made


def write(study, key, lines):
    (study.paths.run(key) / "probes.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))


def looks_of(study):
    return read_probes(collect(study.config, study.paths))


def test_every_look_is_in_the_table_once_with_its_counts(study):
    table = looks_of(study).table
    assert tuple(table.columns[: len(COLUMNS)]) == COLUMNS
    assert len(table.drop_duplicates([*KEY, "step"])) == 2 * len(run_keys(study.config))
    assert not table.duplicated([*KEY, "step", "quantity", "branch", "role", "bin"]).any()
    own = table[(table["optimizer"] == "m-plus-adam") & (table["seed"] == 0) & (table["step"] == 20)]
    own = own[own["regime"] == "bf16-bf16"].set_index(["quantity", "branch", "role", "bin"])
    assert own.loc[("survival", "both", "attention", "-5"), ["value", "count"]].tolist() == [0.6, 1000]
    assert own.loc[("survival", "additive", "attention", "-inf"), ["value", "count"]].tolist() == [0.0, 500]
    assert ("survival", "multiplicative", "attention", "-inf") not in own.index  # none intended: no share
    assert own.loc[("weights", "", "attention", "-6"), "value"] == 0.25
    assert own.loc[("loss_fell", "", "", ""), "value"] == 1.0
    assert own.loc[("stale", "v", "", ""), ["value", "count"]].tolist() == [30 / 90, 90]
    assert math.isnan(own.loc[("stale", "v_e", "", ""), "value"])
    assert own.loc[("undefined", "multiplicative", "all", ""), "value"] == 3


def test_what_is_not_finite_has_not_fallen_and_a_rate_of_zero_is_no_step(study):
    key = study.key(optimizer="adamw", seed=0)
    still = line(40, fell=False, cosine=None)
    lost = line(30)
    lost["loss"]["after"] = None
    write(study, key, [line(20), lost, still])
    table = looks_of(study).table
    own = table[(table[KEY].astype(str) == [str(getattr(key, name)) for name in KEY]).all(axis=1)]
    fell = own[own["quantity"] == "loss_fell"]
    assert dict(zip(fell["step"], fell["value"], strict=True)) == {20: 1.0, 30: 0.0}


def test_many_looks_are_told_in_parts_whose_counts_add_up(study, monkeypatch):
    monkeypatch.setattr(module, "PARTS", 4)
    key = study.key(optimizer="adamw", seed=0)
    write(study, key, [line(step, survived=100 * step, fell=step % 2 == 0, stale=step) for step in range(1, 10)])
    table = looks_of(study).table
    own = table[(table[KEY].astype(str) == [str(getattr(key, name)) for name in KEY]).all(axis=1)]
    assert sorted(own["step"].unique()) == [3, 5, 7, 9]  # 3 + 2 + 2 + 2 probes
    rows = own.set_index(["step", "quantity", "branch", "role", "bin"])
    assert rows.loc[(3, "survival", "additive", "attention", "-5"), ["value", "count"]].tolist() == [0.2, 3000]
    assert rows.loc[(9, "survival", "additive", "attention", "-5"), ["value", "count"]].tolist() == [0.85, 2000]
    assert rows.loc[(9, "loss_fell", "", "", ""), ["value", "count"]].tolist() == [0.5, 2]
    assert rows.loc[(3, "weights", "", "attention", "-6"), ["value", "count"]].tolist() == [0.25, 1500]
    assert rows.loc[(5, "stale", "v", "", ""), ["value", "count"]].tolist() == [pytest.approx(4.5 / 90), 180]


def test_shares_of_a_regime_are_those_of_the_summed_counts(study):
    shares = survival_shares(looks_of(study), "bf16-bf16").set_index(["optimizer", "branch", "bin"])
    row = shares.loc[("m-plus-adam", "multiplicative", "-5")]
    assert row.tolist() == [4000, 2000, 0.5]  # two seeds, 400 and 600 of 1000 at each
    assert shares.loc[("adamw", "weights", "-inf"), "share"] == 0.25
    assert "norm" not in looks_of(study).of("none")["role"].tolist()
    assert "0" not in shares.reset_index()["bin"].tolist()  # the norm's weight: no projection


def test_descent_is_the_mean_of_the_main_entries(study):
    means = descent_means(looks_of(study))
    assert set(means["optimizer"]) == {"adamw", "m-plus-adam"}
    fell = means[(means["quantity"] == "loss_fell") & (means["optimizer"] == "adamw")]
    assert dict(zip(fell["progress"], fell["mean"], strict=True)) != {}
    by_progress = fell[fell["regime"] == "bf16-bf16"].set_index("progress")["mean"].to_dict()
    assert by_progress == {0.2: 1.0, 0.4: 0.5}


def test_staleness_by_dtype_and_beta2(study):
    shares = stale_shares(looks_of(study))
    assert set(zip(shares["state_dtype"], shares["beta2"], strict=True)) == {("bf16", 0.98), ("bf16", 0.999)}
    assert set(shares["state"]) == {"v"}  # of v_e nothing was due
    assert shares["share"].tolist() == pytest.approx([1 / 3] * len(shares))


def test_panels_lines_and_the_place_of_zero(study):
    picture = maker("survival")(collect(study.config, study.paths), "bf16-bf16")
    panels = picture.figure.axes
    assert [axes.get_title() for axes in panels] == ["AdamW", "M+Adam"]  # a level is in the CSV alone
    drawn = [line.get_xydata().tolist() for line in panels[0].lines]
    assert sorted(drawn) == [[[-8.5, 0.0]], [[-5.5, 0.5], [-4.5, 0.5]]]  # zero is joined to nothing
    assert "m-plus-adam@beta2_0" in set(picture.data["optimizer"])


def test_without_a_look_there_are_figures_that_say_so(tmp_path):
    study = fake_study(tmp_path / "results")
    assert looks_of(study).table.empty
    empty = collect(study.config, study.paths)
    picture = maker("survival")(empty, "bf16-bf16")
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["no probe yet"]
    for made in (maker("descent")(empty), maker("staleness")(empty)):
        assert made.data.empty


def test_a_torn_file_is_named(study):
    path = study.paths.run(study.key(seed=1)) / "probes.jsonl"
    path.write_text(path.read_text()[:-10])
    with pytest.raises(ConfigError, match=r"seed1/probes\.jsonl.*delete"):
        looks_of(study)


def test_the_command_writes_what_the_rule_declares(study):
    arguments = ["--config", str(study.config_file), "--results", str(study.paths.results), "--view", "paper"]
    assert main(["probes", *arguments]) == 0
    made = study.paths.root / "paper"
    table = pd.read_csv(made / "tables" / "probes.csv", keep_default_na=False, dtype={"bin": "str"})
    assert len(table) == len(looks_of(study).table)
    names = [exhibit.name for exhibit in needing("probes", study.config)]
    assert set(names) == {"survival-fp32-bf16", "survival-bf16-bf16", "descent", "staleness"}
    written = {path.name for path in (made / "figures").iterdir()}
    assert written == {name + suffix for name in names for suffix in (".svg", ".pdf", ".png", ".json", ".csv")}
    for name in names:
        assert image.imread(made / "figures" / f"{name}.png")[..., :3].std() > 0.01


def test_where_nothing_is_looked_at_no_figure_is_asked_for(tmp_path):
    assert needing("probes", fake_study(tmp_path / "results").config) == []
