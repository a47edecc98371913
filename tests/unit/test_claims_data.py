"""The files of the claims: complete, checked, and hashed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis_fakes import fake_study
from claims_samples import claim as claim_of_a_and_b

from mpadam.analysis.collect import collect
from mpadam.claims.data import CLAIMS, Perplexity, load_claims
from mpadam.claims.examine import check_optimizers, examine
from mpadam.optim.names import parse_optimizer_name
from mpadam.study.load import ConfigError, load_study

ROOT = Path(__file__).parents[2]
#: by hand: ten claims, four objections; and the controls and questions of this project
PAPER = {"1", "2", "3", "4", "5-budget", "5-size", "6", "7", "8", "9-table", "9-fails", "9-both", "10", "survival"}
REFEREE = {"a", "b", "c", "d-draws", "d-tricks"}
OURS = {"twin", "forms", "drift", "shadow", "shadow-refreshed", "stale", "betas", "precision", "eco", "eco-fp8"}

#: the files of the claims, one after another
WHOLE = "".join(path.read_text() for path in sorted(CLAIMS.glob("*.yaml")))


def test_every_claim_objection_and_question_is_there() -> None:
    found = {
        source: {c.id for c in load_claims().claims if c.source == source} for source in ("paper", "referee", "ours")
    }
    assert found == {"paper": PAPER, "referee": REFEREE, "ours": OURS}
    assert all(claim.falsified_by and claim.statement.endswith(".") for claim in load_claims().claims)


def test_grades_are_those_of_the_sources() -> None:
    grades = {claim.id: claim.grade for claim in load_claims().claims}
    words = {"1", "6", "9-table", "9-fails", "9-both", "10", "survival"}
    assert {name for name, grade in grades.items() if grade == "A"} == words
    assert {name for name, grade in grades.items() if grade == "D"} == {"5-size", "8"}
    assert {name for name, grade in grades.items() if grade == "R"} == OURS


def test_b2_claims_about_precision_need_that_precision_costs_something() -> None:
    """Which claims are about precision: docs/concepts/claims.md says why."""
    contrasts = {c.id: c.metric.contrasts for c in load_claims().claims if isinstance(c.metric, Perplexity)}
    needs = {name: {one.premise.name if one.premise else "" for one in found} for name, found in contrasts.items()}
    cost, plain = {"what low precision costs AdamW"}, {"1", "5-budget", "5-size", "betas", "twin", "forms", "drift"}
    assert {name for name, found in needs.items() if found == cost} == needs.keys() - plain - {"7"}
    assert needs["7"] == {"the gain of M+Adam over AdamW"}
    assert all(needs[name] == {""} for name in plain)


def test_b5_survival_is_compared_with_adamws_own() -> None:
    (survival,) = [claim.metric.contrasts for claim in load_claims().claims if claim.id == "survival"]
    terms = [(term.optimizer, term.branch, term.weight) for term in survival[0].terms]
    assert terms == [("m-plus-adam", "multiplicative", 1), ("adamw", "additive", -1)]


def test_the_hash_is_that_of_the_file() -> None:
    assert load_claims().sha256 == hashlib.sha256(WHOLE.encode()).hexdigest()


def test_claims_stay_as_they_were_fixed_before_results_were_read() -> None:
    """The first 28 before the pilot was read, those about ECO before the first run of the long study."""
    texts = [path.read_text() for path in sorted(CLAIMS.glob("*.yaml"))]
    pilot, long = (hashlib.sha256("".join(texts[:end]).encode()).hexdigest() for end in (28, 30))
    assert pilot == "e99fdcf031c845092dc9b83fb5fcea7bd4cbf94235b56fed88a218723bcf998e"
    assert long == "449032d77490ecdbc2c70b799862d554737504f2be9c956d54d60e081936910a"


def test_optimizers_of_contrasts_exist_and_the_study_of_the_paper_has_them() -> None:
    config = load_study([ROOT / "config.yaml"])
    metrics = [claim.metric for claim in load_claims().claims if isinstance(claim.metric, Perplexity)]
    named = {t.optimizer for metric in metrics for contrast in metric.contrasts for t in contrast.terms}
    assert named <= set(config.optimizers)
    for name in named:
        parse_optimizer_name(name.partition("@")[0])
    betas = config.optimizers["adamw@betas0"].values
    assert (betas["beta1"], betas["beta2"]) == (0.9, 0.95)


def test_contrasts_of_perplexity_compare_like_with_like() -> None:
    """Weights sum to 0: what a model, a text or a seed adds to every run cancels."""
    for claim in load_claims().claims:
        if isinstance(claim.metric, Perplexity):
            for contrast in claim.metric.contrasts:
                assert sum(term.weight for term in contrast.terms) == 0
                assert sum(term.weight for term in (contrast.premise.terms if contrast.premise else ())) == 0


def test_minimum_effects_are_half_a_percent_or_a_ratio_of_two() -> None:
    thresholds = {
        abs(claim.threshold) for claim in load_claims().claims if claim.metric.kind in ("perplexity", "trend", "fit")
    }
    assert thresholds == {0.0, 0.005, 0.6931}


WRONG = {
    "misspelt key": (("treshold", 0.1), "Extra inputs are not permitted"),
    "unknown kind": (("metric", {"kind": "guess"}), "guess"),
    "unknown direction": (("direction", "up"), "above"),
    "no number": (("threshold", "NaN"), "threshold"),
    "equivalence without a margin": (("direction", "within"), "needs one above 0"),
    "a share of two optimizers": (
        (
            "metric",
            {
                "kind": "probe",
                "quantity": "loss_fell",
                "contrasts": [
                    {"name": "n", "terms": [{"optimizer": "a", "weight": 1}, {"optimizer": "b", "weight": -1}]}
                ],
            },
        ),
        "one term of weight 1",
    ),
    "agreement with nothing": (
        ("metric", {"kind": "exact", "measurement": "sweep_agreement"}),
        "needs ids of claims",
    ),
    "agreement with a stranger": (
        ("metric", {"kind": "exact", "measurement": "sweep_agreement", "of": ["no"]}),
        "not the id",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_line(tmp_path: Path, name: str) -> None:
    (key, value), told = WRONG[name]
    content = yaml.safe_load(WHOLE)
    first = {**content["claims"][0], "threshold": 0}
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({**content, "claims": [{**first, key: value}]}))
    with pytest.raises(ConfigError, match=told) as error:
        load_claims(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_an_optimizer_that_there_is_not_is_refused_and_an_entry_of_the_study_is_not() -> None:
    """A misspelt one would read "not run" whatever is run; one that this study happens not to have may."""
    found = load_claims()
    check_optimizers(found, entries=[])
    made_up = replace(found, claims=(claim_of_a_and_b(),))
    check_optimizers(made_up, entries=["a", "b"])
    with pytest.raises(ValueError, match=r"claim x: .*'b'.*entry of the study: a, adamw"):
        check_optimizers(made_up, entries=["a", "adamw"])


def contrast(*optimizers: str) -> dict[str, Any]:
    return {"name": "c", "terms": [{"optimizer": name, "weight": 1} for name in optimizers]}


@pytest.mark.parametrize(
    "metric",
    [
        {"kind": "perplexity", "contrasts": [contrast("adamw"), contrast("adamw", "adamv")]},
        {"kind": "perplexity", "contrasts": [{**contrast("adamw"), "premise": contrast("adamv")}]},
        {"kind": "probe", "quantity": "cosine", "contrasts": [contrast("adamv")]},
        {"kind": "trend", "masters": ["fp32", "bf16"], "better": "adamw", "than": "adamv"},
        {"kind": "rates", "better": "adamv", "than": "adamw", "tolerance": 0.1},
    ],
    ids=lambda metric: str(metric["kind"]),
)
def test_wherever_a_claim_names_it(metric: dict[str, Any], tmp_path: Path) -> None:
    study = fake_study(tmp_path / "results")
    claims = replace(load_claims(), claims=(claim_of_a_and_b(metric=metric),))
    with pytest.raises(ValueError, match=r"claim x: .*'adamv' is not known"):
        examine(collect(study.config, study.paths), claims, diagnostics=tmp_path)


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    content = yaml.safe_load(WHOLE)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({**content, "claims": content["claims"][:1] * 2}))
    with pytest.raises(ConfigError, match="id '1' occurs twice"):
        load_claims(path)
