"""Results that lie on another disk behind a link (N22): what run.yaml names relatively is found all the same."""

import json
import os
import shutil

import pytest
from training_runs import make_data, make_run, train

from mpadam.cli import main
from mpadam.data import TokenData
from mpadam.study.run_folder import RunFolder, data_of
from mpadam.study.spec import read_run_file

RUN = "runs/tiny/1x/bf16-bf16/adamw/seed0"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A tree of results with its data and one run that names them relatively, as the workflow does."""
    root = tmp_path_factory.mktemp("tree") / "results" / "study"
    data = make_data(tmp_path_factory.mktemp("made"))
    shutil.copytree(data.folder, root / "data")
    folder = make_run(root / RUN, data, steps=1, evaluate_every=None)
    text, absolute = (folder / "run.yaml").read_text(), str(data.folder.resolve())
    (folder / "run.yaml").write_text(text.replace(absolute, os.path.relpath(root / "data", folder)))
    return root.parent


@pytest.fixture
def tree(original, tmp_path):
    return shutil.copytree(original, tmp_path / "home" / "results")


def move_behind_link(path, disk):
    """Put a folder on another disk, a link in its place; the link is relative, like a user's may be."""
    target = disk / "deep" / "down" / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, target)
    path.symlink_to(os.path.relpath(target, path.parent))


def found(path):
    folder = RunFolder(path)
    return (data_of(folder, read_run_file(folder.run_file)) / "manifest.json").is_file()


LINKED = ["", "study", "study/runs", "study/runs/tiny", f"study/{RUN}", "study/data"]


@pytest.mark.parametrize("part", LINKED)
def test_n22_the_data_are_found_whatever_part_of_the_tree_is_a_link(tree, tmp_path, monkeypatch, part):
    move_behind_link(tree / part, tmp_path / "disk")
    assert found(tree / "study" / RUN)
    monkeypatch.chdir(tree.parent)
    assert found(RunFolder(tree).path.relative_to(tree.parent) / "study" / RUN)
    (tmp_path / "mine").symlink_to(tree / "study" / RUN)  # a user's link to a run
    assert found(tmp_path / "mine")
    (tmp_path / "study").symlink_to(tree / "study")
    assert found(tmp_path / "study" / RUN)


def test_n22_two_links_one_behind_the_other(tree, tmp_path):
    for name in ("runs", "."):
        part = tree / "study" / name
        (tmp_path / "disk").mkdir(exist_ok=True)
        target = shutil.move(part, tmp_path / "disk" / part.name)
        part.symlink_to(target)
    assert found(tree / "study" / RUN)
    (tmp_path / "mine").symlink_to(tree / "study" / "runs")
    assert found(tmp_path / "mine" / RUN.removeprefix("runs/"))


def test_n22_training_through_a_link_and_after_a_move(tree, tmp_path, monkeypatch):
    move_behind_link(tree / "study" / "runs", tmp_path / "disk")
    folder = tree / "study" / RUN
    (folder / "checkpoints").mkdir()
    move_behind_link(folder / "checkpoints", tmp_path / "disk")
    monkeypatch.chdir(tree)
    assert main(["train", "--run-dir", f"study/{RUN}"]) == 0
    assert main(["evaluate", "--run-dir", f"study/{RUN}"]) == 0
    assert main(["export", f"study/{RUN}", str(tmp_path / "exported")]) == 0
    moved = tree.rename(tree.with_name("elsewhere"))
    assert found(moved / "study" / RUN)


def test_n22_a_run_that_is_named_by_its_place_on_the_other_disk_is_told_what_to_write(tree, tmp_path, capsys):
    move_behind_link(tree / "study" / "runs", tmp_path / "disk")
    assert main(["train", "--run-dir", str((tree / "study" / RUN).resolve())]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "no manifest.json" in line
    assert "name the run's folder by its place below results/" in line


def test_n22_links_that_go_round_end(tree, tmp_path):
    run = read_run_file(tree / "study" / RUN / "run.yaml")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        data_of(RunFolder(tmp_path / "a"), run)


def test_n22_files_of_another_run_are_discarded_behind_a_link_too(tree, tmp_path):
    folder = tree / "study" / RUN
    assert train(folder) == 0
    move_behind_link(folder / "checkpoints", tmp_path / "disk")
    make_run(folder, TokenData.open(tree / "study" / "data"), steps=2, evaluate_every=None)
    assert train(folder, replace=True) == 0
    assert (folder / "checkpoints").is_symlink()
    assert json.loads((folder / "checkpoints" / "spec.json").read_text())["spec"]["training"]["steps"] == 2
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"final", "result.json", "spec.json"}
