"""Issue 20 B: what AdamW loses to coarse storage against the number of updates, by paired seeds or else best trials."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from analysis_fakes import FakeStudy, fake_study
from exhibits_made import maker

from mpadam.analysis.collect import Collected, collect
from mpadam.exhibits.lengths import lengths
from mpadam.study.grid import TuningKey, run_keys

SHAPE = {"hidden_size": 32, "intermediate_size": 88, "layers": 2, "heads": 2}
MODELS = {
    "tiny-400": {**SHAPE, "steps_1x": 400},
    "tiny-50": {**SHAPE, "steps_1x": 50},
    "other": {**SHAPE, "layers": 4, "steps_1x": 50},
}
GAPS = {"tiny-50": (0.01, 0.03), "tiny-400": (0.10, 0.14)}  # ln perplexity above fp32, by seed
RATES = {"tiny-50": 1e-2, "tiny-400": 3e-3}
ADAMW = {"optimizer": "adamw", "regime": "bf16-bf16"}


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    """Two lengths of one shape and a model of another; the gap grows and the best rate falls with the length."""
    content: dict[str, Any] = {
        "models": MODELS,
        "budgets": [1],
        "optimizers": {"adamw": {"search": {"lr": [1e-3, 3e-3, 1e-2]}}, "m-plus-adam": {"values": {"lr_mult": 4e-3}}},
        "training": {"global_batch_size": 8, "micro_batch_size": 8, "device": "cpu", "threads": 1, "probe_every": 10},
    }
    made = fake_study(tmp_path / "results", **content)
    for key in run_keys(made.config):
        loss = 4.0 + (GAPS.get(key.model, (0.5, 0.5))[key.seed] if key.regime == "bf16-bf16" else 0.0)
        made.edit_summary({"val_loss": loss, "val_ppl": math.exp(loss)}, **vars(key))
    return made


def choose(study: FakeStudy, model: str, regime: str, rate: float, loss: float = 4.0) -> None:
    """Make the trial at that rate the best."""
    path = study.paths.selected(TuningKey(model, regime, "adamw"))
    content = yaml.safe_load(path.read_text())
    for number, trial in enumerate(content["trials"]):
        trial["val_loss"] = loss + abs(math.log(trial["values"]["lr"] / rate))
        content["best"] = number if trial["values"]["lr"] == rate else content["best"]
    content["values"]["lr"] = rate
    path.write_text(yaml.safe_dump(content))


def probe(study: FakeStudy, survived: int, **labels: Any) -> None:
    """One probe: 1,000 intended updates of a projection, and of a norm none that survives."""
    counts = {"attention": survived, "norm": 0}
    survival = {
        role: {"bins": [-5], "weights": [1000], "additive": {"intended": [1000], "survived": [kept]}}
        for role, kept in counts.items()
    }
    loss, descent = {"before": 5.0, "after": 4.9}, {"all": {"additive": {"cosine": 0.5}}}
    line = {"step": 10, "loss": loss, "survival": survival, "descent": descent, "staleness": {}}
    (study.folder(**labels) / "probes.jsonl").write_text(json.dumps(line) + "\n")
    about = {"training": {"steps": 50}, "optimizer": {"state_dtype": "bf16"}}
    study.edit_summary({"spec": about, "hyperparameters": {"beta2": 0.98}}, **labels)


def collected(study: FakeStudy) -> Collected:
    return collect(study.config, study.paths)


def rows(study: FakeStudy, regime: str = "bf16-bf16") -> list[dict[str, Any]]:
    found = lengths(collected(study))
    return found[found["regime"] == regime].to_dict("records")


def test_gaps_are_percent_over_paired_seeds_in_the_order_of_updates(study: FakeStudy) -> None:
    found = rows(study)
    assert [(row["model"], row["updates"], row["n"]) for row in found] == [("tiny-50", 50, 2), ("tiny-400", 400, 2)]
    assert [row["gap"] for row in found] == pytest.approx([100 * math.expm1(0.02), 100 * math.expm1(0.12)])
    half = 12.706204736 * 0.01  # Student's t of one degree of freedom, times the standard error
    assert (found[0]["low"], found[0]["high"]) == pytest.approx(
        (100 * math.expm1(0.02 - half), 100 * math.expm1(0.02 + half))
    )
    assert all(math.isnan(row["gap"]) for row in rows(study, "fp32-bf16"))


def test_a_length_with_trials_alone_has_their_difference_and_the_caption_says_so(study: FakeStudy) -> None:
    assert "best trials" not in maker("lengths")(collected(study)).caption
    shutil.rmtree(study.paths.root / "runs" / "tiny-50")
    for regime, loss in (("fp32-bf16", 4.0), ("bf16-bf16", 4.2)):
        choose(study, "tiny-50", regime, 3e-3, loss)
    short, long = rows(study)
    assert (short["source"], long["source"]) == ("trials", "runs")
    assert short["gap"] == pytest.approx(100 * math.expm1(0.2))
    assert math.isnan(short["low"])
    assert "difference of the best trials" in maker("lengths")(collected(study)).caption


def test_a_diverged_run_leaves_no_gap_and_trials_do_not_stand_in_for_it(study: FakeStudy) -> None:
    study.diverge(**ADAMW, model="tiny-50", seed=0)
    assert math.isnan(rows(study)[0]["gap"])
    assert "a diverged run has no gap" in maker("lengths")(collected(study)).caption


def test_the_best_rate_is_that_of_each_lengths_own_tuning(study: FakeStudy) -> None:
    for model, rate in RATES.items():
        choose(study, model, "bf16-bf16", rate)
    found = {row["model"]: row for row in rows(study)}
    assert {model: found[model]["rate"] for model in RATES} == RATES
    assert [found[model]["bracketed"] for model in RATES] == [False, True]


def test_lost_updates_are_those_of_projections_over_all_seeds(study: FakeStudy) -> None:
    for seed, survived in ((0, 900), (1, 700)):
        probe(study, survived, **ADAMW, model="tiny-400", seed=seed)
    short, long = rows(study)
    assert math.isnan(short["lost"])
    assert (long["lost"], long["intended"]) == (pytest.approx(20.0), 2000)


def test_a_line_per_regime_with_a_point_per_length(study: FakeStudy) -> None:
    for seed in (0, 1):
        probe(study, 800, **ADAMW, model="tiny-400", seed=seed)
    gap, lost, rate = maker("lengths")(collected(study)).figure.axes
    curves = [line.get_ydata() for line in gap.lines if len(line.get_ydata()) == 2 and line.get_ydata()[0] > 0]
    assert np.asarray(curves) == pytest.approx(np.array([[100 * math.expm1(0.02), 100 * math.expm1(0.12)]]))
    assert [tick.get_text() for tick in gap.get_xticklabels()] == ["50", "400"]
    assert [list(line.get_ydata()) for line in lost.lines if len(line.get_ydata())] == [[pytest.approx(20.0)]]
    assert len(rate.lines) == 2


def test_with_one_length_only_it_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    study = fake_study(tmp_path / "results", budgets=[1])
    picture = maker("lengths")(collected(study))
    [text] = picture.figure.axes[0].texts
    assert text.get_text() == picture.caption
    assert "nothing to compare" in picture.caption
    assert picture.data.empty


def test_budgets_of_one_model_are_lengths_too(tmp_path: Path) -> None:
    found = lengths(collected(fake_study(tmp_path / "results")))
    assert set(zip(found["shape"], found["updates"], strict=True)) == {
        *(("tiny", 50), ("tiny", 100)),
        *(("small", 50), ("small", 100)),
    }
