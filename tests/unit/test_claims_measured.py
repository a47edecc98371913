"""Claims that probes along training, diagnostics and tuning trials answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from analysis_fakes import FakeStudy
from claims_samples import PLACE, cell_of, gained_study, judged, verdicts

from mpadam.analysis.collect import collect
from mpadam.claims.data import CLAIMS, load_claims
from mpadam.claims.examine import examine


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return gained_study(tmp_path / "results")


# --- probes and diagnostics ------------------------------------------------------------------------------------------


def write_probes(study: FakeStudy, entry: str, probes: Callable[[int], list[dict[str, Any]]]) -> None:
    """Probes of the five runs of a cell in bf16-bf16, made from their seeds."""
    for seed in study.config.seeds:
        labels = {**PLACE, "optimizer": entry, "seed": seed}
        spec = {"training": {"steps": 50}, "optimizer": {"state_dtype": "bf16"}}
        study.edit_summary({"spec": spec, "hyperparameters": {"beta2": 0.98}}, **labels)
        lines = "".join(json.dumps(line) + "\n" for line in probes(seed))
        (study.folder(**labels) / "probes.jsonl").write_text(lines)


def probe(step: int, **parts: Any) -> dict[str, Any]:
    """A line of probes.jsonl with these parts of it."""
    measures = {"cosine": 0.5, "at_least": 0.1, "at_most": 0.1}
    line = {"step": step, "loss": {"before": 5.0, "after": 4.9}, "survival": {}, "staleness": {}}
    return {**line, "descent": {"all": {"additive": measures, "log2": measures}}, **parts}


def test_absent_looks_are_not_run(study: FakeStudy) -> None:
    assert {judged(study, name).verdict for name in ("10", "c", "survival", "stale")} == {"not run"}


def test_a_report_of_updates_judges_no_perplexity(study: FakeStudy) -> None:
    config = study.config.model_copy(update={"report": "updates"})
    claims = load_claims(CLAIMS)
    found = examine(collect(config, study.paths), claims, diagnostics=study.paths.root)
    assert {judged.claim.id for judged in found.judged} == {"10", "a", "c", "survival", "stale"}


def test_survival_is_counted_among_the_largest_weights_of_projections(study: FakeStudy) -> None:
    """The top bin holds 10 of 100 weights of attention; bins below, embeddings and zeros do not count."""

    def counts(top: int) -> dict[str, list[int]]:
        return {"intended": [0, 85, 10], "survived": [0, 80, top]}

    def probes(seed: int) -> list[dict[str, Any]]:
        attention = {"bins": ["zero", -6, -2], "weights": [5, 85, 10], "additive": counts(1)}
        embedding = {"intended": [1000], "survived": [0]}
        survival = {
            "attention": {**attention, "multiplicative": counts(6 + seed // 2)},
            "embedding": {"bins": [-2], "weights": [1000], "additive": embedding, "multiplicative": embedding},
        }
        return [probe(50, survival=survival)]

    write_probes(study, "m-plus-adam", probes)
    own = {"attention": {"bins": [-2], "weights": [10], "additive": {"intended": [10], "survived": [2]}}}
    write_probes(study, "adamw", lambda _: [probe(50, survival=own)])
    found = judged(study, "survival")
    (one,) = [cell for cell in found.cells if cell.regime == "bf16-bf16"]
    assert list(one.values.values()) == pytest.approx([0.4, 0.4, 0.5, 0.5, 0.6])
    assert one.parts == pytest.approx({"m-plus-adam multiplicative bf16-bf16": 0.68, "adamw additive bf16-bf16": 0.2})
    assert (one.verdict, one.reason) == ("supported", "shown to be above +10 points")
    assert found.verdict == "inconclusive"  # regimes in which nothing was looked at
    assert "not run: tiny 1x fp8-bf16" in found.reason


def test_looks_are_averaged_over_a_run_by_what_they_counted(study: FakeStudy) -> None:
    losses = [{"before": 5.0, "after": after} for after in (5.1, 4.9, 4.9)]
    write_probes(study, "m-plus-adam", lambda _: [probe(10 * k, loss=loss) for k, loss in enumerate(losses)])
    states = [{"v": {"entries": 50, "due": due, "stale": stale}} for due, stale in ((30, 15), (10, 1), (0, 0))]
    write_probes(study, "adamw", lambda _: [probe(10 * k, staleness=state) for k, state in enumerate(states)])
    assert cell_of(study, "10").mean == pytest.approx(2 / 3)
    assert cell_of(study, "10").verdict == "contradicted"
    assert cell_of(study, "stale", contrast="AdamW").mean == pytest.approx(0.4)
    assert {cell.verdict for cell in judged(study, "c").cells if cell.regime == "bf16-bf16"} == {"supported"}


def test_looks_of_a_diverged_run_do_not_count(study: FakeStudy) -> None:
    write_probes(study, "m-plus-adam", lambda _: [probe(10)])
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
    fails = {cell.where: cell for cell in judged(study, "9-fails").cells}
    assert fails["zero weights"].verdict == "supported"  # the same error at every rate: the edge hides nothing
    assert fails["sign errors"].verdict == "not bracketed"
    assert fails["large weights"].mean < 0
    both = judged(study, "9-both")
    assert {cell.contrast for cell in both.cells} == {"M+Adam (one rate for all) over AdamW or Madam (best rates)"}
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
    assert [(cell.where, cell.verdict) for cell in found.cells] == [
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


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("matrix-fitting/results.json", "{"),
        ("matrix-fitting/results.json", '{"choices": [{}]}'),
        ("matrix-fitting/results.json", "[]"),
        ("capabilities/capabilities.csv", ""),
        ("capabilities/capabilities.csv", "format,optimizer\nbf16,adamw\n"),
        ("survival-grid/survival.csv", "format,optimizer\nbf16,m-plus-adam\n"),
    ],
)
def test_a_diagnostic_that_is_not_whole_is_named_with_what_to_do(study: FakeStudy, file: str, content: str) -> None:
    path = study.paths.output / "diagnostics" / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"{path.parent}: not what `mpadam diagnose` writes \(\w+: .*make it again"):
        verdicts(study)


def test_widths_of_rates_are_shown_and_never_decided_from_one_seed(study: FakeStudy) -> None:
    found = cell_of(study, "6")
    assert (found.verdict, found.reason) == ("inconclusive", "n = 1 < 3 seeds")
    assert found.mean == 0.0
    assert found.flags == (
        "the region of m-plus-adam reaches the end of the trials",
        "the region of adamw reaches the end of the trials",
    )


def test_a_step_that_nothing_survived_has_no_slope(study: FakeStudy) -> None:
    folder = study.paths.output / "diagnostics" / "survival-grid"
    folder.mkdir(parents=True)
    header = "format,optimizer,part,magnitude,mean_step\n"
    (folder / "survival.csv").write_text(header + "bf16,m-plus-adam,multiplicative,1,0\n")
    assert judged(study, "a").verdict == "not run"
