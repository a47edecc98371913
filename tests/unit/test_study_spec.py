"""Grids, the identity of a run, tuning, and what the Snakefile is told."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpadam.study.auto import Auto
from mpadam.study.grid import RunKey, TuningKey, run_keys, selection_key, trial_values, tuning_keys
from mpadam.study.load import ConfigError, load_study, merge, parse_study, read_yaml, to_yaml
from mpadam.study.paths import StudyPaths
from mpadam.study.spec import differing_fields, read_run_file, resolve, run_request, trial_request, write_run_file
from mpadam.study.tuning import select
from mpadam.workflow.requests import Workflow

ROOT = Path(__file__).parents[2]
MANIFEST = {"fingerprint": "f", "tokenizer_fingerprint": "t", "vocab_size": 1024, "train_sequences": 10_000}
KEY = RunKey("200k", 2, "bf16-bf16", "m-plus-adam", 1)
TUNED = {"lr": 1e-3, "lr_mult": 3e-3}


def smoke(**changes: object):
    content = merge(read_yaml(ROOT / "config.yaml"), read_yaml(ROOT / "studies/smoke.yaml"))
    return parse_study(merge(content, changes))


def spec_of(config, key=KEY, *, manifest=MANIFEST, selected=TUNED):
    return resolve(
        run_request(config, key), manifest=manifest, selected=selected, data="../data", auto=Auto(compile=True)
    ).spec


# --- grids -----------------------------------------------------------------------------------------------------------


def test_the_study_is_the_union_of_its_grids_without_duplicates() -> None:
    core = {"name": "core", "models": ["200k"], "budgets": [1], "regimes": ["bf16-bf16"], "optimizers": ["adamw"]}
    more = {**core, "name": "more", "budgets": [1, 2]}
    keys = run_keys(smoke(grids=[core, more]))
    assert keys == [RunKey("200k", b, "bf16-bf16", "adamw", s) for b in (1, 2) for s in (0, 1)]


def test_an_axis_left_out_means_all_of_it() -> None:
    config = smoke(grids=[{"name": "all", "models": ["200k"]}])
    assert len(run_keys(config)) == len(config.budgets) * len(config.regimes) * len(config.optimizers) * 2


def test_every_optimizer_gets_the_same_number_of_trials_and_each_is_another_point() -> None:
    config = smoke(optimizers={"m-plus-adam": {"search": {"lr": [1e-4, 1e-3, 1e-2], "lr_mult": [1e-3, 1e-2]}}})
    for entry in ("adamw", "m-plus-adam"):
        values = trial_values(config, entry)
        assert len(values) == 4
        assert len({json.dumps(v) for v in values}) == 4
    assert trial_values(config, "m-plus-adam") == trial_values(config, "m-plus-adam")


def test_an_entry_needs_points_for_its_trials_only_if_it_has_trials() -> None:
    """Of an entry that takes another's rates, or that no grid uses, the search is not looked at."""
    one = {"search": {"lr": [1e-3], "lr_mult": None}}
    smoke(optimizers={"adamw-sr": one})  # which takes adamw's
    with pytest.raises(ConfigError, match=r"optimizers.adamw: its search has 1 points"):
        smoke(optimizers={"adamw": one})


def test_a_model_can_take_the_values_of_another() -> None:
    config = load_study([ROOT / "config.yaml"])
    assert selection_key(config, RunKey("1b", 1, "bf16-bf16", "adamw", 0)).model == "350m"
    assert "1b" not in {key.model for key in tuning_keys(config)}


def test_no_float_enters_a_path() -> None:
    paths = StudyPaths("smoke", Path("r"))
    assert paths.run(KEY) == Path("r/smoke/runs/200k/2x/bf16-bf16/m-plus-adam/seed1")
    assert paths.trial(TuningKey("200k", "bf16-bf16", "adamw"), 3) == Path("r/smoke/tuning/200k/bf16-bf16/adamw/trial3")


# --- identity --------------------------------------------------------------------------------------------------------


def test_budget_and_model_decide_the_steps() -> None:
    assert spec_of(smoke()).training.steps == 2 * smoke().models["200k"].steps_1x
    by_tokens = smoke(models={"200k": {"steps_1x": None, "tokens_per_parameter": 20.0}})
    parameters = by_tokens.models["200k"].parameters(1024)
    assert spec_of(by_tokens, manifest={**MANIFEST, "train_sequences": 10**9}).training.steps == -(
        -2 * 20 * parameters // (smoke().training.global_batch_size * 128)
    )


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"study": "other"}, True),
        ({"training": {"checkpoint_every": 7}}, True),
        ({"wandb": {"mode": "offline"}}, True),
        ({"seeds": [0, 1, 2]}, True),
        ({"optimizers": {"adamw": {"values": {"weight_decay": 0.2}}}}, True),
        ({"optimizers": {"m-plus-adam": {"values": {"weight_decay": 0.2}}}}, False),
        ({"training": {"threads": 2}}, False),
        ({"training": {"probe_layers": True}}, True),
        ({"training": {"clip_norm": 2.0}}, False),
        ({"training": {"micro_batch_size": 3}}, False),
        ({"training": {"schedule": {"warmup": 0.1}}}, False),
        ({"regimes": {"bf16-bf16": {"masters": "fp32"}}}, False),
        ({"models": {"200k": {"intermediate_size": 160}}}, False),
    ],
)
def test_the_hash_covers_what_changes_the_numbers_and_nothing_else(change, same) -> None:
    before, after = spec_of(smoke()), spec_of(smoke(**change))
    assert (before.hash == after.hash) is same
    assert bool(differing_fields(before, after)) is not same


def test_a_run_knows_how_sequences_are_cut_and_not_where_the_text_was() -> None:
    """What enters the identity of a run is the same wherever the same text came from; the manifest says which."""
    hub = {"source": "c4_hub", "revision": 40 * "a", "train_shards": 3, "downloads": "/elsewhere"}
    assert run_request(smoke(data=hub), KEY) == run_request(smoke(), KEY)
    assert run_request(smoke(), KEY)["data"] == {
        "sequences": "pack",
        "sequence_length": 128,
        "validation_tokens": 16384,
        "epochs": 2,
    }


@pytest.mark.parametrize("field", ["fingerprint", "tokenizer_fingerprint", "vocab_size"])
def test_the_hash_covers_data_and_tokenizer(field) -> None:
    value = 2048 if field == "vocab_size" else "other"
    assert spec_of(smoke()).hash != spec_of(smoke(), manifest={**MANIFEST, field: value}).hash


def test_selected_values_complete_the_fixed_ones_and_change_the_hash() -> None:
    spec = spec_of(smoke())
    assert spec.optimizer.values["lr"] == 1e-3
    assert spec.optimizer.values["weight_decay"] == 0.1
    assert spec.hash != spec_of(smoke(), selected={**TUNED, "lr": 3e-3}).hash


def test_trials_use_their_own_seed_and_half_and_length() -> None:
    config = smoke(tuning={"steps_fraction": 0.5})
    request = trial_request(config, TuningKey("200k", "bf16-bf16", "adamw"), 2)
    spec = resolve(request, manifest=MANIFEST, selected={}, data="d", auto=Auto(compile=True)).spec
    assert spec.seed == 1000
    assert spec.data.validation_half == "selection"
    assert spec_of(config).data.validation_half == "report"
    assert spec.training.steps == config.models["200k"].steps_1x // 2
    assert spec.optimizer.values["lr"] == config.optimizers["adamw"].search["lr"][2]


def test_auto_compile_is_resolved_when_the_run_is_written() -> None:
    request = run_request(smoke(training={"compile": "auto"}), KEY)
    for compiler in (True, False):
        spec = resolve(request, manifest=MANIFEST, selected=TUNED, data="d", auto=Auto(compile=compiler)).spec
        assert spec.training.compile is compiler


def test_a_budget_beyond_the_data_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"needs 960 .* has 100 and .* allows 200; .*  epochs: 10"):
        spec_of(smoke(), manifest={**MANIFEST, "train_sequences": 100})


def test_a_run_file_survives_the_disk_and_refuses_an_edit(tmp_path) -> None:
    run = resolve(
        run_request(smoke(), KEY), manifest=MANIFEST, selected=TUNED, data="../data", auto=Auto(compile=False)
    )
    path = tmp_path / "a" / "run.yaml"
    write_run_file(path, run)
    assert read_run_file(path) == run
    path.write_text(path.read_text().replace("lr: 0.001", "lr: 0.002"))
    with pytest.raises(ConfigError, match="edited"):
        read_run_file(path)
    path.write_text("hash: 1\nlabels: {}\n")
    with pytest.raises(ConfigError, match=r"run.yaml: labels"):
        read_run_file(path)


# --- tuning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hash_", ["5245e83287496749", "1e10", "0123456789012345", "00000000000000e1", "4200b379096c7fd7"]
)
def test_a_hash_that_looks_like_a_number_stays_a_hash(hash_: str, tmp_path) -> None:
    """5245e83287496749 was the hash of a run of the pilot study, and was read as infinity."""
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml({"hash": hash_, "rate": 8e-5, "nested": {"fingerprints": [hash_]}}))
    assert read_yaml(path) == {"hash": hash_, "rate": 8e-5, "nested": {"fingerprints": [hash_]}}


def trial(lr: float, loss: float | None) -> dict:
    return {"values": {"lr": lr}, "status": "completed" if loss else "diverged", "val_loss": loss, "hash": str(lr)}


def test_the_best_completed_trial_is_selected() -> None:
    selected = select([trial(1e-3, 5.0), trial(3e-3, 4.0), trial(1e-2, 4.5), trial(3e-2, None)])
    assert (selected["best"], selected["values"], selected["bracketed"]) == (1, {"lr": 3e-3}, {"lr": True})


@pytest.mark.parametrize("best", [0, 2])
def test_a_best_value_at_the_edge_is_not_bracketed(best) -> None:
    losses = [5.0, 5.0, 5.0]
    losses[best] = 4.0
    selected = select([trial(lr, loss) for lr, loss in zip((1e-3, 3e-3, 1e-2), losses, strict=True)])
    assert selected["bracketed"] == {"lr": False}


def test_where_every_trial_diverged_the_selection_says_so() -> None:
    selected = select([trial(3e-2, None), trial(1e-2, None)])
    assert selected["status"] == "all trials diverged"
    assert selected["values"] == {"lr": 1e-2}


# --- the Snakefile's questions ---------------------------------------------------------------------------------------


def test_only_a_change_of_meaning_changes_a_rule_parameter() -> None:
    def text(**changes):
        workflow = Workflow(smoke(**changes), StudyPaths("smoke"))
        return workflow.run_text(SimpleNamespace(**{**vars(KEY), "budget": "2", "seed": "1"}))

    assert text() == text(seeds=[0, 1, 5])
    assert text() == text(optimizers={"adamw": {"search": {"lr": [1e-3, 3e-3, 1e-2, 2e-2]}}})
    assert text() == text(training={"clip_norm": "1"})
    assert text() == text(training={"probe_layers": False})
    assert text(training={"probe_every": 5}) == text(training={"probe_every": 5}, report="updates")
    assert text() != text(optimizers={"m-plus-adam": {"values": {"weight_decay": 0.3}}})
    assert text() != text(optimizers={"m-plus-adam": {"search": {"lr": [1e-3, 2e-3]}}})


def test_a_study_with_fixed_rates_asks_for_no_tuning() -> None:
    values = {"adamw": {"values": {"lr": 1e-3}}, "m-plus-adam": {"values": TUNED}}
    core = {"name": "core", "models": ["200k"], "regimes": ["bf16-bf16"], "optimizers": ["adamw", "m-plus-adam"]}
    workflow = Workflow(smoke(tuning={"mode": "fixed"}, optimizers=values, grids=[core]), StudyPaths("smoke"))
    assert workflow.selections_of_view(SimpleNamespace(view="")) == []
    assert workflow.selected_of_run(SimpleNamespace(**vars(KEY))) == []
    assert len(workflow.view("").summaries()) == 8


def test_a_target_runs_its_own_grids_and_all_paper_runs_all() -> None:
    core = {"name": "core", "models": ["200k"], "budgets": [1], "regimes": ["bf16-bf16"], "optimizers": ["adamw"]}
    more = {**core, "name": "more", "regimes": ["fp8-fp8"], "target": "all_paper"}
    workflow = Workflow(smoke(grids=[core, more]), StudyPaths("smoke"))
    assert [len(workflow.view(view).summaries()) for view in ("", "paper")] == [2, 4]
    assert workflow.study_text(SimpleNamespace(view="")) != workflow.study_text(SimpleNamespace(view="paper/"))


def test_regimes_and_optimizers_can_take_the_values_of_others() -> None:
    entry = {"m-plus-adam@tau1": {"optimizer": "m-plus-adam", "values": {"tau": 1e-4, "lr": 5e-3}}}
    transfer = {"regimes": {"fp8-fp8": "bf16-bf16"}, "optimizers": {"m-plus-adam@tau1": "m-plus-adam"}}
    config = smoke(optimizers=entry, tuning={"transfer": transfer})
    key = RunKey("200k", 1, "fp8-fp8", "m-plus-adam@tau1", 0)
    assert selection_key(config, key) == TuningKey("200k", "bf16-bf16", "m-plus-adam")
    values = spec_of(config, key).optimizer.values
    assert (values["tau"], values["lr_mult"]) == (1e-4, TUNED["lr_mult"])
    assert values["lr"] == 5e-3, "what an entry gives itself wins over what it takes"


def test_an_entry_may_have_a_warm_up_of_its_own() -> None:
    config = smoke()
    warm_up = config.models["200k"].steps_1x // 5
    shapes = {
        entry: [
            (schedule.kind, schedule.warmup_steps) for schedule in (spec.training.schedule, spec.training.schedule_mult)
        ]
        for entry in ("m-plus-adam", "m-plus-adam@warmup0")
        if (spec := spec_of(config, RunKey("200k", 1, "bf16-bf16", entry, 0)))
    }
    assert shapes == {
        "m-plus-adam": [("linear", warm_up), ("logcosine", warm_up)],
        "m-plus-adam@warmup0": [("linear", 0), ("logcosine", 0)],
    }


def test_runs_that_share_a_job_belong_to_the_first_grid_that_names_them() -> None:
    core = {"name": "core", "models": ["200k"], "budgets": [1], "regimes": ["bf16-bf16"], "optimizers": ["adamw"]}
    more = {**core, "name": "more", "regimes": ["bf16-bf16", "fp8-fp8"], "target": "all_paper", "runs_per_job": 1}
    shared = {**more, "name": "shared", "budgets": [1, 2], "runs_per_job": 3}
    workflow = Workflow(smoke(grids=[core, more, shared]), StudyPaths("smoke"))
    jobs = workflow.shared_jobs()
    assert {name: len(keys) for name, keys in jobs.items()} == {"runs_shared_0": 3, "runs_shared_1": 1}
    assert {key.budget for keys in jobs.values() for key in keys} == {2}
    assert workflow.run_files(jobs["runs_shared_1"], "run.yaml")[0].endswith("200k/2x/fp8-fp8/adamw/seed1/run.yaml")


def test_a_shared_job_asks_for_the_time_of_all_its_runs() -> None:
    workflow = Workflow(smoke(), StudyPaths("smoke"))
    keys = workflow.shared_jobs()["runs_ablations_0"]
    one, all_of_them = workflow.training_resources(keys[0]), workflow.shared_resources(keys)
    assert all_of_them["runtime"](None, 1) == len(keys) * one["runtime"](None, 1)
    assert all_of_them["mem_mb"](None, 1) == one["mem_mb"](None, 1)


def test_values_that_an_optimizer_does_not_take_cannot_be_transferred() -> None:
    with pytest.raises(ConfigError, match=r"adamw@betas0 from m-plus-adam: .*lr_mult"):
        smoke(tuning={"transfer": {"optimizers": {"adamw@betas0": "m-plus-adam"}}})
