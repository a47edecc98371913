"""N37: what cannot be read is not taken for absent, wherever the code asks whether a record is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from analysis_fakes import FakeStudy, fake_study

from mpadam import cli
from mpadam.analysis.collect import collect
from mpadam.data import c4, c4_hub, saved
from mpadam.data.download import download_shard
from mpadam.data.loader import TokenData
from mpadam.data.tokenizer import fetched_tokenizer, tokenizer_receipt
from mpadam.data.tokens import read_shard_manifest
from mpadam.exhibits.complete import problems
from mpadam.exhibits.registry import Exhibit
from mpadam.plan.jobs import finished
from mpadam.plan.needs import read_manifest
from mpadam.presence import entries, is_there, why_unreadable
from mpadam.reference.models import model_of
from mpadam.status.report import State, read_state, read_status, to_text
from mpadam.stored import sha256
from mpadam.study.archive import keep
from mpadam.study.run_folder import RunFolder, data_of, read_json
from mpadam.study.spec import RunFile, read_run_file
from mpadam.study.text import DataConfig, TokenizerConfig
from mpadam.training import checkpoint
from mpadam.training.folder import claim, raise_known_failure, restore_summary
from mpadam.training.metrics import holds
from mpadam.workflow.container import bind_paths
from mpadam.workflow.edited import shows_refused

RUN = {"model": "tiny", "budget": 1, "regime": "bf16-bf16", "optimizer": "adamw", "seed": 1}
REVISION = "1" * 40


def _folder(path: Path) -> None:
    path.mkdir()


def _link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "not-mounted" / path.name)


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


UNREADABLE = {"a folder": _folder, "a link to nothing": _link_to_nothing, "a link to itself": _link_to_itself}
Damage = Callable[[Path], None]


@pytest.fixture(params=UNREADABLE)
def damage(request: pytest.FixtureRequest) -> Damage:
    """Puts something that cannot be read in the place of a file; it is so for root too."""

    def replace(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        UNREADABLE[request.param](path)

    return replace


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a file one of another user's, mode 600, or its folder one that may not be entered or listed."""
    forbidden: set[str] = set()

    def guard(module: object, name: str) -> None:
        original = getattr(module, name)

        def guarded(path: object = ".", *arguments: object, **options: object) -> object:
            if str(path) in forbidden:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **options)

        monkeypatch.setattr(module, name, guarded)

    guard(__import__("io"), "open")
    guard(os, "stat")
    guard(os, "scandir")
    guard(os, "listdir")
    return lambda path: forbidden.add(str(path))


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return fake_study(tmp_path / "results")


# --- the question -----------------------------------------------------------------------------------------------------


def test_a_name_that_its_folder_does_not_have_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert is_there(tmp_path / "file")
    assert is_there(tmp_path)
    assert not is_there(tmp_path / "none")
    assert not is_there(tmp_path / "none" / "none")
    assert entries(tmp_path / "none") == []
    assert entries(tmp_path) == [tmp_path / "file"]


def test_n37_a_link_that_leads_nowhere_is_no_absence_and_neither_is_what_is_behind_it(tmp_path: Path) -> None:
    """A results folder on a disk that is not mounted, asked for from the working directory or by its whole path."""
    (tmp_path / "results").symlink_to(tmp_path / "not-mounted")
    for path in (tmp_path / "results", tmp_path / "results" / "study" / "summary.json"):
        with pytest.raises(OSError, match=r"a link to what is not there: '.*/results'"):
            is_there(path)


def test_a_link_to_what_is_there_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    assert is_there(tmp_path / "results")
    assert not is_there(tmp_path / "results" / "summary.json")


def test_n37_without_permission_there_is_no_answer(tmp_path: Path, forbid: Callable[[Path], None]) -> None:
    path = tmp_path / "summary.json"
    forbid(path)
    forbid(tmp_path)
    for ask in (is_there, entries):
        with pytest.raises(PermissionError):
            ask(path if ask is is_there else tmp_path)
    assert why_unreadable(PermissionError(13, "Permission denied", str(path))) == (
        "summary.json: cannot be read: Permission denied"
    )
    assert why_unreadable(OSError("gone")) == "cannot be read: gone"


# --- data of a run, items of the paper, models, containers ------------------------------------------------------------


@pytest.fixture
def run(study: FakeStudy, tmp_path: Path) -> tuple[RunFolder, RunFile]:
    folder = RunFolder(study.folder(**RUN))
    return folder, read_run_file(folder.run_file).model_copy(update={"data": str(tmp_path / "data")})


def test_n37_data_that_cannot_be_read_are_not_called_absent(
    run: tuple[RunFolder, RunFile], tmp_path: Path, forbid: Callable[[Path], None]
) -> None:
    with pytest.raises(ValueError, match=r"no manifest.json, .* run  mpadam data  first"):
        data_of(*run)
    forbid(tmp_path / "data" / "manifest.json")
    with pytest.raises(PermissionError, match=r"data/manifest\.json"):
        data_of(*run)


def test_n37_an_item_that_cannot_be_read_is_not_called_absent(tmp_path: Path, damage: Damage) -> None:
    item = Exhibit("", "tables", "table1", "", "", "", checked={"table.csv": ("a",)})
    (tmp_path / "tables").mkdir()
    for file in item.files:
        (tmp_path / file).touch()
    assert problems(tmp_path, [item]) == ["table1: table.csv: no numbers"]
    damage(tmp_path / "table.csv")
    (line,) = problems(tmp_path, [item])
    assert ": cannot be read: " in line


def test_n37_a_model_configuration_that_cannot_be_read_is_not_the_paper_s(tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "llama_60m.json"
    assert model_of(str(path))[0] == "60m"
    damage(path)
    with pytest.raises(OSError, match=r"llama_60m\.json|not-mounted"):
        model_of(str(path))


def test_n37_a_folder_for_a_container_that_cannot_be_read_is_not_left_out(
    study: FakeStudy, tmp_path: Path, forbid: Callable[[Path], None]
) -> None:
    update = {"data": study.config.data.model_copy(update={"downloads": str(tmp_path / "downloads")})}
    config = study.config.model_copy(update=update)
    assert bind_paths(config) == []
    forbid(tmp_path / "downloads")
    with pytest.raises(PermissionError):
        bind_paths(config)


def test_n37_a_table_that_cannot_be_read_ends_no_start_of_the_workflow(tmp_path: Path, damage: Damage) -> None:
    damage(tmp_path / "runs.csv")
    assert not shows_refused(tmp_path / "runs.csv")


# --- status, tables, plan ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.yaml", "summary.json", "metrics.jsonl", "failure.json", "train.lock"])
def test_n37_status_calls_such_a_run_unreadable(study: FakeStudy, damage: Damage, name: str) -> None:
    folder = study.folder(**RUN)
    if name in ("metrics.jsonl", "failure.json"):  # which a finished run is not asked for
        (folder / "summary.json").unlink()
    damage(folder / name)
    state = read_state(folder)
    assert state.state == "unreadable"
    assert state.note.startswith(f"{name}: cannot be read: ")
    text = to_text(read_status(study.config, study.paths.results))
    assert "1 unreadable" in text
    assert state.note in text


def test_n37_status_of_another_users_summary(study: FakeStudy, forbid: Callable[[Path], None]) -> None:
    folder = study.folder(**RUN)
    forbid(folder / "summary.json")
    assert read_state(folder) == State("unreadable", note="summary.json: cannot be read: Permission denied")


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "run.yaml"])
def test_n37_tables_refuse_such_a_run(study: FakeStudy, damage: Damage, name: str) -> None:
    damage(study.folder(**RUN) / name)
    collected = collect(study.config, study.paths)
    assert collected.count("missing") == 0
    (refusal,) = collected.refusals
    assert f"runs/tiny/1x/bf16-bf16/adamw/seed1/{name}: cannot be read: " in refusal


def test_n37_tables_refuse_a_selection_that_cannot_be_read(study: FakeStudy, damage: Damage) -> None:
    key = next(tuning.key for tuning in collect(study.config, study.paths).tunings)
    damage(study.paths.selected(key))
    collected = collect(study.config, study.paths)
    assert any("selected.yaml: cannot be read: " in refusal for refusal in collected.refusals)


@pytest.mark.parametrize("command", ["aggregate", "claims", "site", "plan"])
def test_n37_a_manifest_that_cannot_be_read_ends_in_one_line(
    study: FakeStudy, damage: Damage, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(study.paths.manifest)
    code = cli.main([command, "--config", str(study.config_file), "--results", str(study.paths.results)])
    assert code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mpadam {command}: [Errno ")
    assert "manifest.json" in error
    assert error.count("\n") == 1


def test_n37_a_plan_does_not_overlook_finished_runs(study: FakeStudy, damage: Damage) -> None:
    from mpadam.plan.jobs import runs

    damage(study.folder(**RUN) / "summary.json")
    with pytest.raises(OSError, match=r"summary.json"):
        finished(runs(study.config), study.paths)
    damage(study.paths.manifest)
    with pytest.raises(OSError, match=r"manifest.json"):
        read_manifest(study.config, study.paths)


def test_n37_keeping_a_study_overlooks_nothing(
    study: FakeStudy, tmp_path: Path, forbid: Callable[[Path], None]
) -> None:
    forbid(study.paths.root / "runs" / "tiny")
    with pytest.raises(PermissionError):
        keep(study.paths.root, tmp_path / "kept")


# --- training ---------------------------------------------------------------------------------------------------------


def test_n37_training_asks_no_record_in_vain(tmp_path: Path, damage: Damage, study: FakeStudy) -> None:
    from mpadam.study.spec import read_run_file

    run = read_run_file(study.folder(**RUN) / "run.yaml")
    folder = RunFolder(tmp_path / "run")
    for path, ask in (
        (folder.identity, lambda: claim(folder, run, replace=True)),
        (folder.result, lambda: restore_summary(folder, run)),
        (folder.failure, lambda: raise_known_failure(folder, run)),
        (folder.metrics, lambda: sha256(folder.metrics)),
        (folder.metrics, lambda: holds(folder.metrics, 10)),
        (folder.environment, lambda: read_json(folder.environment)),
    ):
        damage(path)
        with pytest.raises(OSError, match=path.name):
            ask()
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_n37_checkpoints_that_cannot_be_read_are_no_new_start(
    tmp_path: Path, damage: Damage, forbid: Callable[[Path], None]
) -> None:
    root = tmp_path / "checkpoints"
    damage(root / "step00000010" / "manifest.json")
    with pytest.raises(OSError, match=r"manifest.json"):
        checkpoint.newest(root, run_hash="0")
    forbid(root)
    with pytest.raises(PermissionError):
        checkpoint.newest(root, run_hash="0")
    assert checkpoint.newest(tmp_path / "none", run_hash="0") is None


# --- data -------------------------------------------------------------------------------------------------------------


def test_n37_what_was_fetched_is_not_fetched_again(tmp_path: Path, damage: Damage) -> None:
    data = DataConfig(source="c4_hub", revision=REVISION, downloads=str(tmp_path), train_shards=1)
    name = "train-00000-of-01024"
    damage(c4_hub.receipt_path(data, name))
    with pytest.raises(OSError, match=name):
        download_shard(data, name, log=print)
    shard = next(shard for shard in c4_hub.shards(data) if shard.name == name)
    assert shard.path is not None
    shard.path.parent.mkdir()
    shard.path.write_bytes(b"")
    with pytest.raises(OSError, match=name):
        shard.open()
    tokenizer = TokenizerConfig(source="hub", repo="owner/name", revision=REVISION)
    damage(tokenizer_receipt(data, tokenizer))
    with pytest.raises(OSError, match=r"receipt.json"):
        fetched_tokenizer(data, tokenizer)


def test_n37_token_files_and_manifests(tmp_path: Path, damage: Damage) -> None:
    damage(tmp_path / "manifest.json")
    with pytest.raises(OSError, match=r"manifest.json"):
        TokenData.open(tmp_path)
    damage(tmp_path / "shard.json")
    with pytest.raises(OSError, match=r"shard.json"):
        read_shard_manifest(tmp_path)


def test_n37_folders_of_text(tmp_path: Path, forbid: Callable[[Path], None]) -> None:
    (tmp_path / "en").mkdir()
    forbid(tmp_path / "en")
    with pytest.raises(PermissionError):
        c4.shards(DataConfig(source="c4_folder", path=str(tmp_path)))
    (tmp_path / "state.json").write_text("{}")
    forbid(tmp_path / "state.json")
    with pytest.raises(PermissionError):
        saved.shards(DataConfig(source="saved_dataset", path_train=str(tmp_path), path_validation=str(tmp_path)))
