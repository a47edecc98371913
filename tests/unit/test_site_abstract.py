"""The top of the page: five sentences and a chart made of the data, for a study in whatever state."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from analysis_fakes import FakeStudy
from claims_samples import CLAIMS_STUDY, PLACE, WIGGLE, claims_study, gained_study, give, raise_cost, verdicts
from exhibits_made import maker
from scipy import stats

from mpadam.analysis.collect import collect
from mpadam.claims.effects import ALTERNATIVE, FORM, ITSELF, Effects
from mpadam.claims.examine import claims_content
from mpadam.claims.outcome import costs, how, outcomes
from mpadam.claims.words import GAIN, writer
from mpadam.site.abstract import Abstract, abstract

summary = maker("summary")


def effects_of(study: FakeStudy) -> Effects:
    return Effects(collect(study.config, study.paths))


def abstract_of(study: FakeStudy, claims: dict[str, Any] | None = None) -> Abstract:
    return abstract(collect(study.config, study.paths), claims)


def text_of(found: Abstract, lead: str) -> str:
    return " ".join(dict(found.sentences)[lead])


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    """M+Adam 4.9% better than AdamW everywhere; FP8 costs AdamW 10.5%, bf16 and NVFP4 nothing."""
    study = gained_study(tmp_path / "results")
    raise_cost(study, {"fp8-bf16": 0.1})
    return study


def level(study: FakeStudy, optimizer: str, value: float, regime: str = "bf16-bf16") -> None:
    values = {seed: value + 0.1 * seed + bit for seed, bit in enumerate(WIGGLE)}
    give(study, values, **{**PLACE, "regime": regime, "optimizer": optimizer})


# --- sentences -------------------------------------------------------------------------------------------------------


def test_four_sentences_say_what_was_tested_what_came_out_how_sure_and_what_cannot_be_tested(study: FakeStudy) -> None:
    found = abstract_of(study)
    assert [lead for lead, _ in found.sentences] == ["Tested", "Result", "Certainty", "Limits"]
    assert "1 model of 0.058M parameters, trained for 50 updates" in text_of(found, "Tested")
    assert "5 seeds; 80 runs" in text_of(found, "Tested")
    assert "AdamW is shown to lose by weights below fp32 in 1 of 4 regimes, most in fp8-bf16" in text_of(
        found, "Result"
    )
    assert "M+Adam is shown to be better than AdamW in 4 of 4 regimes" in text_of(found, "Result")
    assert "worse in none, and undecided in none" in text_of(found, "Result")
    assert "means over 5 paired seeds" in text_of(found, "Certainty")
    assert "in bf16-bf16 and nvfp4-bf16 and nvfp4s-bf16 AdamW is not shown to lose" in text_of(found, "Limits")
    assert all(text.endswith(".") for text in (text_of(found, lead) for lead, _ in found.sentences))


def test_what_adamw_loses_is_told_for_each_regime_in_percent_with_its_interval(study: FakeStudy) -> None:
    rows = {row.where: row for row in abstract_of(study).costs}
    assert list(rows) == ["bf16-bf16", "fp8-bf16", "nvfp4-bf16", "nvfp4s-bf16"]
    values = [0.1 + 2 * bit - bit for bit in WIGGLE]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    told = [f"{100 * math.expm1(value):+.1f}" for value in (0.1, low, high)]
    assert rows["fp8-bf16"].text == f"{told[0]}% ({told[1]} to {told[2]})"
    assert (rows["fp8-bf16"].shown, rows["bf16-bf16"].shown) == ("yes", "no")


def test_i20_only_what_varies_is_in_the_name_of_a_cell(tmp_path: Path) -> None:
    """Two lengths at one budget: the models are named, and `1x` is not."""
    tiny = CLAIMS_STUDY["models"]["tiny"]
    study = claims_study(tmp_path / "lengths", models={"tiny": tiny, "tiny-long": {**tiny, "steps_1x": 100}}, seeds=[0])
    assert [row.where for row in abstract_of(study).costs][:2] == ["tiny bf16-bf16", "tiny fp8-bf16"]
    assert ": 1 model of" in text_of(abstract_of(study), "Tested")  # of one shape, with two lengths
    study = claims_study(tmp_path / "budgets", budgets=[1, 2], seeds=[0])
    assert "2x fp8-bf16" in [row.where for row in abstract_of(study).costs]


def test_i20_a_regime_that_costs_something_at_one_length_is_not_said_to_cost_nothing(tmp_path: Path) -> None:
    tiny = CLAIMS_STUDY["models"]["tiny"]
    study = claims_study(tmp_path / "lengths", models={"tiny": tiny, "tiny-long": {**tiny, "steps_1x": 100}})
    for model, cost in (("tiny", 0.1), ("tiny-long", 0.0)):
        for regime, loss in (("fp32-bf16", 4.0), ("fp8-bf16", 4.0 + cost)):
            values = {seed: loss + (1 + (cost > 0)) * bit for seed, bit in enumerate(WIGGLE)}
            give(study, values, model=model, budget=1, regime=regime, optimizer="adamw")
    found = abstract_of(study)
    assert "most in tiny fp8-bf16 +10.5%" in text_of(found, "Result")
    idle = text_of(found, "Limits").partition(" AdamW is not shown to lose")[0]
    assert "tiny-long fp8-bf16" in idle
    assert "tiny fp8-bf16" not in idle


def test_two_seeds_give_directions_only(tmp_path: Path) -> None:
    found = abstract_of(claims_study(tmp_path / "two", seeds=[0, 1]))
    assert "M+Adam has a lower mean perplexity than AdamW in 4 of 4 regimes" in text_of(found, "Result")
    assert "shown to be" not in text_of(found, "Result")
    assert text_of(found, "Certainty").startswith("Directions only: 2 seeds cannot")


def test_an_unfinished_study_says_how_much_is_in_and_decides_nothing(study: FakeStudy) -> None:
    study.remove(**PLACE, optimizer="m-plus-adam", seed=3)
    study.diverge(**{**PLACE, "regime": "nvfp4-bf16"}, optimizer="m-plus-adam", seed=0)
    found = abstract_of(study)
    assert "79 of 80 runs are in" in text_of(found, "Tested")
    assert "better than AdamW in 2 of 3 regimes" in text_of(found, "Result")
    assert re.search(r"undecided in 1, means \+\d\.\d% \(1 more diverged or not run\)", text_of(found, "Result"))
    assert "1 of 4 comparisons wait for seeds" in text_of(found, "Certainty")


def test_a_study_without_a_run_has_an_abstract_and_a_chart_too(tmp_path: Path) -> None:
    study = claims_study(tmp_path / "none")
    shutil.rmtree(study.paths.root / "runs")
    content = claims_content(verdicts(study), collect(study.config, study.paths))
    found = abstract_of(study, json.loads(json.dumps(content)))
    assert text_of(found, "Result") == "No pair of runs is in yet."
    assert text_of(found, "Certainty").startswith("Nothing is known yet")
    assert "claims were not run" in text_of(found, "Limits")
    assert "no pair of runs yet" in summary(collect(study.config, study.paths)).caption


def test_without_fp32_weights_nothing_shows_what_storage_costs(tmp_path: Path) -> None:
    grids = [{"name": "main", "regimes": ["bf16-bf16"], "optimizers": ["adamw", "m-plus-adam"]}]
    found = abstract_of(claims_study(tmp_path / "low", grids=grids))
    assert found.costs == []
    assert "without AdamW at fp32 weights" in text_of(found, "Limits").lower().replace("adamw", "AdamW")


# --- what the chart compares -----------------------------------------------------------------------------------------


def test_the_strongest_alternative_and_the_best_form_are_those_with_the_largest_mean_gain(study: FakeStudy) -> None:
    level(study, "adamw-sr", 3.97)
    level(study, "m-plus-adam-sr", 3.93)
    level(study, "m-plus-adam-apollo-e", 3.90)
    level(study, "additive-twin", 3.5)  # a control, and neither
    found = {one.kind: one for one in effects_of(study).gains if one.gain.regime == "bf16-bf16"}
    assert {kind: (one.entry, one.candidates) for kind, one in found.items()} == {
        ITSELF: ("m-plus-adam", 1),
        ALTERNATIVE: ("adamw-sr", 1),
        FORM: ("m-plus-adam-apollo-e", 2),
    }
    assert found[FORM].gain.untestable  # at M+Adam's rates
    assert found[ALTERNATIVE].over is not None
    assert found[ALTERNATIVE].over.mean == pytest.approx(0.02)
    text = summary(collect(study.config, study.paths)).figure.axes[0].get_yticklabels()
    assert "M+Adam, Apollo-E*†" in [label.get_text() for label in text]


def test_the_wide_interval_holds_for_all_that_could_have_been_chosen(study: FakeStudy) -> None:
    low, itself, form = (
        next(one.gain for one in effects_of(study).gains if (one.kind, one.gain.regime) == pair)
        for pair in ((ITSELF, "fp32-bf16"), (ITSELF, "bf16-bf16"), (FORM, "bf16-bf16"))
    )
    assert (low.family_size, itself.family_size, form.family_size) == (1, 4, 2)
    values = list(itself.values.values())
    wanted = stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / 4)
    assert itself.family_interval == pytest.approx(tuple(wanted))


def test_the_chart_has_a_line_for_each_optimizer_and_its_numbers_in_a_file(study: FakeStudy) -> None:
    picture = summary(collect(study.config, study.paths))
    assert picture.data is not None
    assert list(picture.data["regime"].unique()) == ["fp32-bf16", "bf16-bf16", "fp8-bf16", "nvfp4-bf16", "nvfp4s-bf16"]
    assert len(picture.figure.axes[0].get_yticks()) == len(picture.data) == 7
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    row = picture.data.query("regime == 'nvfp4-bf16'").iloc[0]
    assert GAIN.text(row["mean"], (row["low"], row["high"])) in texts
    assert "Chosen after the fact" in picture.caption


# --- outcomes --------------------------------------------------------------------------------------------------------


def outcome_of(study: FakeStudy, name: str) -> tuple[str, list[str]]:
    content = json.loads(json.dumps(claims_content(verdicts(study), collect(study.config, study.paths))))
    claim = next(one for one in content["claims"] if one["id"] == name)
    kinds = [one.kind for one in outcomes(claim, costs(content))]
    return how(claim, kinds), kinds


def test_where_adamw_loses_nothing_m_plus_adam_fails_at_nothing(study: FakeStudy) -> None:
    level(study, "m-plus-adam", 4.05)
    level(study, "m-plus-adam", 4.2, "fp8-bf16")
    assert outcome_of(study, "1")[0] == "fails in 1 of 4 cells; holds in 2; nothing to recover in 1"
    raise_cost(study, {"fp8-bf16": 0.0})
    told, kinds = outcome_of(study, "1")
    assert told == "holds in 2 of 4 cells; nothing to recover in 2"
    assert "fails" not in kinds
    assert outcome_of(study, "3")[0].startswith("nothing to recover in")


@pytest.mark.parametrize(
    ("verdict", "kinds", "told"),
    [
        ("contradicted", ["fails", "undecided", "fails", *["undecided"] * 3], "fails in 2 of 6 cells; 4 undecided"),
        ("supported", ["holds"] * 3, "holds in all 3 cells"),
        ("inconclusive", ["undecided"], "undecided in its one cell"),
        ("not testable here", ["not on equal terms"] * 2, "not on equal terms in all 2 cells"),
        ("not run", [], "not run: the study has no such runs or measurements"),
    ],
)
def test_a_verdict_says_how(verdict: str, kinds: list[str], told: str) -> None:
    assert how({"verdict": verdict}, kinds) == told


@pytest.mark.parametrize(
    ("unit", "differences", "told"),
    [
        ("ln perplexity", True, "+9.5% (-10.5 to +25.9)"),
        ("share", True, "+10.0 points (-10.0 to +30.0)"),
        ("share", False, "10.0% (-10.0 to 30.0)"),
        ("ln error", True, "1.11 times (0.905 to 1.35)"),
        ("octaves", True, "1.07 times (0.933 to 1.23)"),
        ("cosine", True, "0.1 cosine (-0.1 to 0.3)"),
    ],
)
def test_effects_are_percent_points_or_factors(unit: str, differences: bool, told: str) -> None:
    assert writer(unit, of_differences=differences).text(0.1, (-0.1, 0.3)) == told


def test_a_report_of_updates_says_which_share_changes_the_stored_weight_and_nothing_of_perplexity(
    study: FakeStudy,
) -> None:
    config = study.config.model_copy(update={"report": "updates"})
    assert "No probe is in yet." in text_of(abstract(collect(config, study.paths), None), "Result")
    tables = study.paths.output / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    (tables / "updates.csv").write_text(
        "regime,optimizer,branch,survive,seeds\n"
        "bf16-bf16,adamw,additive,0.59014,3\nbf16-bf16,adamw,both,0.59014,3\n"
        "bf16-bf16,adamw@betas0,additive,0.71,1\n"
        "bf16-bf16,m-plus-adam,additive,0.2201,1\nbf16-bf16,m-plus-adam,multiplicative,0.79918,1\n"
        "fp8-bf16,adamw,additive,0.00004,3\n"
    )
    found = abstract(collect(config, study.paths), None)
    assert text_of(found, "Result") == (
        "Updates to the projections that change the stored weight, in bf16-bf16: AdamW 59%; AdamW, customary betas "
        "71%; M+Adam 22% (additive) and 80% (multiplicative); fp8-bf16: AdamW 0.004%."
    )
    assert "(seeds: 1 to 3)" in text_of(found, "Certainty")
    assert found.costs == []
