"""The reader of the configuration: what it refuses and what it knows is the same for Snakemake and `mpadam`."""

from pathlib import Path

import pytest
from analysis_fakes import study_content

from mpadam.study.config import ContainerConfig, StudyConfig
from mpadam.study.load import ConfigError, load_study, parse_study, read_words, read_yaml
from mpadam.study.section import LONGEST_NAME
from mpadam.study.text import DataConfig, TokenizerConfig
from mpadam.workflow.requests import rule_names

ROOT = Path(__file__).parents[2]


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "overlay.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# --- N18: keys that are given twice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("training: {threads: 1}\nseeds: [0]\ntraining: {log_every: 5}\n", "training", "on lines 1 and 3"),
        ("training:\n  schedule:\n    kind: linear\n    kind: cosine\n", "kind", "on lines 3 and 4"),
        ("grids:\n- name: a\n  seeds: [0]\n  name: b\n", "name", "on lines 2 and 4"),
        ("models: {a: {layers: 1, layers: 2}}\n", "layers", "on line 1"),
        ("'a': 1\n\"a\": 2\n", "a", "on lines 1 and 2"),
        ("a: &x {b: 1, b: 2}\nc: {<<: *x}\n", "b", "on line 1"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n  <<: *x\n", "<<", "on lines 3 and 4"),
        ("a: 1\r\nb: 2\r\na: 3\r\n", "a", "on lines 1 and 3"),
        ("\ufeffa: 1\na: 2\n", "a", "on lines 1 and 2"),
        ('{\n\t"a": 1,\n\t"a": 2\n}\n', "a", "on lines 2 and 3"),
    ],
)
def test_n18_a_key_that_is_given_twice_is_refused_with_both_lines(tmp_path, text, key, lines) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert str(error.value) == f"{path}: key {key!r} is given twice, {lines}; keep one"


def test_n18_words_of_the_command_line_too() -> None:
    with pytest.raises(ConfigError, match="--config training: key 'threads' is given twice, on line 1; keep one"):
        read_words(["training={threads: 1, threads: 2}"])
    with pytest.raises(ConfigError, match="--config: key 'study' is given twice; keep one"):
        read_words(["study=abc", "seeds=[0]", "study=def"])


def test_words_of_the_command_line_mean_what_they_mean_in_a_file(tmp_path) -> None:
    words = [
        "training={compile: false, clip_norm: null, threads: 2}",
        "seeds=[0, 1]",
        "study=a=b",
        "wandb=",
    ]
    text = "training: {compile: false, clip_norm: null, threads: 2}\nseeds: [0, 1]\nstudy: a=b\nwandb:\n"
    assert read_words(words) == read_yaml(written(tmp_path, text))
    rate = read_words(["optimizers={adamw: {values: {lr: 8e-5}}}"])["optimizers"]["adamw"]["values"]["lr"]
    assert type(rate) is float
    assert rate == 8e-5


# --- N19: merge keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "merged"),
    [
        ("s: &s {x: 1, y: 2}\nt: {<<: *s}\n", {"x": 1, "y": 2}),
        ("s: &s {x: 1, y: 2}\nt: {<<: *s, x: 3}\n", {"x": 3, "y": 2}),
        ("s: &s {x: 1}\nr: &r {x: 2, y: 2}\nt: {<<: [*s, *r]}\n", {"x": 1, "y": 2}),
        # an anchored mapping that merges, deep down, and is merged itself further up: composed keys are no repeats
        ("r: &r {x: 0}\na: {b: {c: &s {<<: *r, x: 1}}}\nt: {<<: *s, y: 2}\n", {"x": 1, "y": 2}),
    ],
)
def test_n19_merge_keys_are_known_and_a_key_may_override_a_merged_one(tmp_path, text, merged) -> None:
    assert read_yaml(written(tmp_path, text))["t"] == merged


def test_n19_an_anchor_holds_within_its_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"overlay.yaml: not YAML: found undefined alias 'small'.*line 1"):
        read_yaml(written(tmp_path, "models: {a: {<<: *small}}\n"))


# --- other files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing but a comment\n", "is empty"),
        ("- a\n- b\n", "expected a mapping .*, found a list"),
        ("a:\n\tb: 1\n", "not YAML: .*line 2"),
        (b"a: \xe4\n", "not UTF-8"),
        ("a: 1\n---\nb: 2\n", "not YAML: expected a single document"),
        ("? [a]\n: 1\n", "not YAML: .*unhashable key"),
        ("a: 2024-13-45\n", "not YAML: month must be"),
        ("a: 010\n", "line 1: YAML reads 010 as 8; write 8, or quote"),
        ("a: 1\n1:30: 2\n", "line 2: YAML reads 1:30 as 90; write 90, or quote"),
        ("a: 1:30.5\n", "line 1: YAML reads 1:30.5 as 90.5; write 90.5, or quote"),
        ("a: {<<: 3}\n", "line 1: << merges mappings"),
        ("a: {<<: [{b: 1}, [c]]}\n", "line 1: << merges mappings"),
        ("a: !!bool maybe\n", "not YAML: 'maybe'"),
        ("a: !!timestamp soon\n", "not YAML: "),
        ("a: " + 2000 * "[" + 2000 * "]", "not YAML: maximum recursion"),
        ("a: 1\nseeds: &all [*all]\n", "line 2: this holds an alias of itself"),
        ("a: &own\n  <<: *own\n", "line 1: this holds an alias of itself"),
        ("models: !!set {a, b}\n", "not YAML: .*tag:yaml.org,2002:set"),  # whose order is another in each process
    ],
)
def test_n18_what_cannot_be_read_ends_in_one_line_that_names_the_file(tmp_path, text, message) -> None:
    with pytest.raises(ConfigError, match=f"overlay.yaml: {message}") as error:
        read_yaml(written(tmp_path, text))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ['{\n\t"a": {"b": 8e-5}\n}', "\ufeffa: {b: 8e-5}\n", "a:\r\n  b: 8e-5\r\n"])
def test_json_with_tabs_a_byte_order_mark_and_lines_of_windows_are_read(tmp_path, text) -> None:
    assert read_yaml(written(tmp_path, text)) == {"a": {"b": 8e-5}}


@pytest.mark.parametrize(
    "text", ["on: 1\n", "models: {no: {}}\n", "study: 1e5\n", "study: null\n", "grids: [{name: 1}]\n"]
)
def test_n21_what_yaml_does_not_read_as_a_name_is_to_be_quoted(tmp_path, text) -> None:
    overlay = written(tmp_path, text)
    with pytest.raises(ConfigError, match=r"is not a string .*; quote it"):
        load_study([ROOT / "config.yaml", ROOT / "studies/smoke.yaml", overlay])


# --- N21: names -------------------------------------------------------------------------------------------------------


def test_n21_two_names_give_two_rules() -> None:
    names = ["trials/200k/bf16-bf16/adamw", "trials/200k-bf16/bf16/adamw", "trials/a@my_lr/x/y", "trials/a@my-lr/x/y",
             "trials/a@my_lr/x/y_2", "trials/a@my-lr/x/y-2", "trials/a/my-lr/x/y"]  # fmt: skip
    rules = rule_names(names)
    assert list(rules) == names
    assert len(set(rules.values())) == len(names)
    assert all(rule.isidentifier() for rule in rules.values())
    assert rules[names[0]] == "trials_200k_bf16_bf16_adamw"


@pytest.mark.parametrize(
    ("name", "corrected"),
    [
        ("My-Model", "my-model"),
        ("m.plus adam", "m-plus-adam"),
        ("my_model", "my-model"),
        ("a/../b", "a-b"),
        ("adamw@0lr", "adamw@lr"),
        ("adamw@LR.2", "adamw@lr_2"),
        ("x" * (LONGEST_NAME + 1), "x" * LONGEST_NAME),
    ],
)
def test_n21_a_name_that_would_not_work_is_refused_with_one_that_does(name, corrected) -> None:
    shape = study_content()["models"]["tiny"]
    with pytest.raises(ConfigError, match=rf"models.*: {name!r} cannot be.*; write e.g.  {corrected}$"):
        parse_study(study_content(models={name: shape}))
    assert list(parse_study(study_content(models={corrected: shape})).models) == [corrected]


def test_n21_two_grids_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"grids: 'a' names two grids; write e.g.  name: a-2"):
        parse_study(study_content(grids=[{"name": "a"}, {"name": "b"}, {"name": "a"}]))


# --- N16: paths -------------------------------------------------------------------------------------------------------


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv("SCRATCH", "/scratch/a b")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("DOLLAR", "/a$b")
    monkeypatch.delenv("NOWHERE", raising=False)


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("~/dl", "/home/user/dl"),
        ("~", "/home/user"),
        ("${SCRATCH}/dl", "/scratch/a b/dl"),
        ("$SCRATCH", "/scratch/a b"),
        ("here/${SCRATCH}x", "here//scratch/a bx"),
        ("relative/folder/", "relative/folder/"),
        ("./~/dl", "./~/dl"),
        ("a~b", "a~b"),
    ],
)
def test_n16_home_and_variables_of_every_path_are_expanded_once(places, path, expanded) -> None:
    c4 = DataConfig(source="c4_folder", path=path, downloads=path)
    saved = DataConfig(source="saved_dataset", path_train=path, path_validation=path)
    container = ContainerConfig(image=path, binds=[path])
    found = [c4.path, c4.downloads, saved.path_train, saved.path_validation, container.image, *container.binds]
    assert [*found, TokenizerConfig(source="folder", path=path).path] == [expanded] * 7
    assert DataConfig.model_validate(c4.model_dump()) == c4, "as a job reads it from its request"


def test_n16_a_reference_to_a_registry_stays_as_it_is(places) -> None:
    assert ContainerConfig(image="docker://owner/image:1").image == "docker://owner/image:1"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("${NOWHERE}/dl", "the environment variable NOWHERE is not set or empty"),
        ("$EMPTY/dl", "the environment variable EMPTY is not set or empty"),
        ("$DOLLAR/dl", "a path cannot hold '\\$'"),
        ("${SCRATCH:-/tmp}/dl", "a path cannot hold '\\$'"),
        ("$(pwd)/dl", "a path cannot hold '\\$'"),
        ("{model}/dl", "a path cannot hold '{'"),
        ("~no-such-user/dl", "there is no such user"),
        ("", "the path is empty"),
    ],
)
def test_n16_what_cannot_be_expanded_is_refused_by_name(places, path, message) -> None:
    with pytest.raises(ConfigError, match=rf"^data.downloads: .*{message}"):
        parse_study(study_content(data={"source": "builtin", "downloads": path}))


def test_n16_an_empty_home_is_refused(places, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "")
    with pytest.raises(ConfigError, match="the environment variable HOME is not set or empty"):
        parse_study(study_content(data={"source": "builtin", "downloads": "~/dl"}))


def test_n16_the_study_is_recorded_expanded(places) -> None:
    config = parse_study(study_content(data={"source": "builtin", "downloads": "~/dl"}))
    assert isinstance(config, StudyConfig)
    assert config.model_dump(mode="json")["data"]["downloads"] == "/home/user/dl"
