"""The configuration: what it accepts, and that every refusal names key, value and remedy in one line."""

import copy
from pathlib import Path

import pytest
import yaml

from mpadam.study.load import ConfigError, load_study, merge, parse_study, read_yaml
from mpadam.study.schema import schema_text

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted((ROOT / "studies").glob("*.yaml"))


@pytest.fixture
def content() -> dict:
    return merge(read_yaml(ROOT / "config.yaml"), read_yaml(ROOT / "studies/smoke.yaml"))


def set_at(content: dict, key: str, value: object) -> dict:
    changed = copy.deepcopy(content)
    *path, last = key.split(".")
    here = changed
    for part in path:
        here = here.setdefault(part, {})
    here[last] = value
    return changed


def test_the_paper_study_is_valid() -> None:
    load_study([ROOT / "config.yaml"])


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_is_valid_and_names_itself(overlay: Path) -> None:
    assert load_study([ROOT / "config.yaml", overlay]).study == overlay.stem


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("trainig", {"threads": 1}, ["trainig", "did you mean 'training'"]),
        ("training.clip_nrom", 2.0, ["training.clip_nrom", "Write  clip_norm: 2.0"]),
        ("training.schedule.warmpu", 0.1, ["training.schedule.warmpu", "warmup: 0.1"]),
        ("models.200k.hiden_size", 64, ["models.200k.hiden_size", "hidden_size: 64"]),
        ("models.200k.steps_1x", "many", ["models.200k.steps_1x", '"many"']),
        ("models.200k.heads", 3, ["models.200k", "multiple of heads 3"]),
        ("models.200k.tokens_per_parameter", 20, ["models.200k", "exactly one of steps_1x"]),
        ("regimes.bf16-bf16.masters", "bf61", ["regimes.bf16-bf16.masters", "'bf61'", "masters: bf16"]),
        ("optimizers.adamww", {}, ["optimizers.adamww", "did you mean 'adamw'"]),
        ("optimizers.adamw.serach", {"lr": [1e-3]}, ["optimizers.adamw.serach", "search: "]),
        ("optimizers.adamw.values.lr_mult", 1e-3, ["optimizers.adamw", "lr_mult"]),
        ("optimizers.adamw.values.beta2", 1.5, ["optimizers.adamw", "beta2", "1.5"]),
        ("optimizers.adamw.search.lr", [1e-3, 1e-3, 2e-3, 3e-3], ["optimizers.adamw", "each value once"]),
        ("optimizers.adamw.search.lr", [1e-3], ["optimizers.adamw", "tuning.trials"]),
        ("optimizers.adamw.search.lr", ["fast", 1, 2, 3], ["optimizers.adamw.search.lr.0", "fast"]),
        ("optimizers", {False: {}}, ["optimizers", "False", "quote it"]),
        ("optimizers.adam/w", {}, ["optimizers", "lower-case"]),
        ("data.source", "c4_foldr", ["data.source", "source: c4_folder"]),
        ("data.path", "/data/c4", ["data", "path"]),
        ("data", {"source": "c4_folder"}, ["data", "needs a path"]),
        ("tokenizer", {"source": "bpe"}, ["tokenizer", "vocab_size: 1024"]),
        ("tokenizer", {"source": "folder"}, ["tokenizer", "path: "]),
        ("training.micro_batch_size", 4, ["training", "6", "4"]),
        ("training.clip_norm", float("inf"), ["training.clip_norm", "finite"]),
        ("tuning.seed", 1, ["tuning.seed", "also in seeds"]),
        ("tuning.mode", "fixed", ["optimizers.adamw.values", "tuning.mode is fixed", "lr: "]),
        ("tuning.transfer", {"models": {"1b": "60M"}}, ["tuning.transfer.models", "'60M'"]),
        ("report", "updates", ["report 'updates'", "training.probe_every is null", "probe_every: 20"]),
        ("grids", [{"name": "a", "seeds": [7]}], ["grids: a: seeds: 7"]),
        ("grids", [{"name": "a", "budgets": [0.5]}], ["grids.0.budgets.0", "0.5"]),
        ("grids", [], ["grids"]),
        ("seeds", [-1], ["seeds.0", "-1"]),
        ("seeds", [0, True], ["seeds: [0, true] is no number"]),
        ("training.threads", True, ["training", "threads: true is no number", "give a number"]),
        ("training.clip_norm", False, ["clip_norm: false is no number"]),
        ("data.sequence_length", True, ["data", "sequence_length: true"]),
        ("evaluation.every", True, ["evaluation", "every: true"]),
        ("models.200k.layers", True, ["models.200k", "layers: true"]),
        ("optimizers.adamw.values.beta2", True, ["optimizers.adamw", "beta2", "true"]),
        ("optimizers.adamw.search.lr", [True, 1, 2, 3], ["optimizers.adamw", "true"]),
        ("grids", [{"name": "a", "budgets": [True]}], ["grids.0: budgets: [true]"]),
    ],
)
def test_a_refusal_is_one_line_with_key_value_and_remedy(content, key, value, expected) -> None:
    with pytest.raises(ConfigError) as error:
        parse_study(set_at(content, key, value))
    message = str(error.value)
    assert "\n" not in message
    for part in expected:
        assert part in message


def test_a_missing_key_is_named(content) -> None:
    del content["tokenizer"]
    with pytest.raises(ConfigError, match="tokenizer: this key is required"):
        parse_study(content)


@pytest.mark.parametrize("text", ["8e-5", "8.0e-5", "0.00008", "'8e-5'"])
def test_s4_a_rate_is_the_same_number_however_it_is_written(content, tmp_path, text) -> None:
    """S4: YAML 1.1 reads 8e-5 as a string. Snakemake's own reader does, ours does not; both give one number."""
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(f"optimizers: {{adamw: {{values: {{lr: {text}}}}}}}")
    for reader in (read_yaml, lambda path: yaml.safe_load(path.read_text())):
        study = parse_study(merge(content, reader(overlay)))
        assert study.optimizers["adamw"].values["lr"] == 8e-5
        assert type(study.optimizers["adamw"].values["lr"]) is float


def test_a_repeated_key_is_refused(tmp_path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("study: a\nseeds: [0]\nseeds: [1]\n")
    with pytest.raises(ConfigError, match=r"twice.yaml: key 'seeds' is given twice"):
        read_yaml(path)


@pytest.mark.parametrize("text", ["a: [", "- a\n- b\n", "\x00"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path, text) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad.yaml: "):
        read_yaml(path)
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")


def test_merging_replaces_lists_and_merges_dictionaries() -> None:
    assert merge({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": 4}) == {"a": {"b": 1, "c": [3]}, "d": 4}


def test_the_committed_schema_is_the_one_the_code_generates() -> None:
    committed = (ROOT / "workflow/schemas/config.schema.json").read_text()
    assert committed == schema_text(), "run: python -m mpadam.study.schema > workflow/schemas/config.schema.json"


def test_the_study_room_imports_no_torch() -> None:
    import subprocess
    import sys

    code = "import mpadam.workflow.requests, sys; print(*(name in sys.modules for name in ('torch', 'transformers')))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]
