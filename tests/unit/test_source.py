"""Where the code that runs comes from (N33, N23): the commit of the package's own repository, or none and why."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mpadam import __version__, source
from mpadam.source import PACKAGE, check_checkout, digest, origin

GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always")


@pytest.fixture(autouse=True)
def no_git_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run([*GIT, "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def tree(root: Path) -> Path:
    """A source tree; returns the package's folder."""
    package = root / "src" / "mpadam"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (root / "config.yaml").write_text("a: 1\n")
    (root / ".gitignore").write_text("/results/*\n!/results/example/\n__pycache__/\n")
    (root / "results" / "example").mkdir(parents=True)
    (root / "results" / "example" / "kept.txt").write_text("one\n")
    return package


def repository(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    return root


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of a clone."""
    found = tree(tmp_path / "clone")
    repository(tmp_path / "clone")
    return found


def told(package: Path) -> tuple[str | None, bool | None]:
    """Commit and whether it is dirty; never both a commit and a reason, or neither."""
    found = origin(package)
    assert (found["commit"] is None) == ("commit_unknown" in found) == (found["dirty"] is None)
    assert found["source"] == {"version": __version__, "sha256": digest(package)}
    return found["commit"], found["dirty"]


def test_n33_variables_of_git_do_not_decide(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = head(package)
    other = repository(tmp_path / "other")
    for name, value in {
        "GIT_DIR": str(other / ".git"),
        "GIT_WORK_TREE": str(other),
        "GIT_INDEX_FILE": str(other / ".git" / "index"),
        "GIT_CEILING_DIRECTORIES": str(package.parent),
        "GIT_OBJECT_DIRECTORY": str(other / ".git" / "objects"),
        "LC_ALL": "tr_TR.UTF-8",
    }.items():
        monkeypatch.setenv(name, value)
    assert told(package) == (expected, False)


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
@pytest.mark.parametrize("name", ["src/mpadam/__init__.py", "config.yaml", "src/mpadam/größe y.py"])
def test_n33_changes_that_git_was_told_not_to_see_are_seen(package: Path, flag: str, name: str) -> None:
    root = package.parent.parent
    (root / name).write_text("x = 1\n" if name.endswith(".py") else "a: 1\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "--allow-empty", "-m", "second")
    git(root, "update-index", flag, name, "results/example/kept.txt")
    (root / "results" / "example" / "kept.txt").write_text("two\n")
    assert told(package) == (head(package), False)
    (root / name).write_text("x = 2\n")
    assert told(package) == (head(package), True)
    (root / name).unlink()
    assert told(package) == (head(package), flag == "--assume-unchanged")  # left out of a sparse checkout


def test_n33_an_edit_that_keeps_size_and_date_is_seen_whatever_git_compares(package: Path) -> None:
    """As on file systems without inode numbers that last, for which git is told to compare less."""
    root, file = package.parent.parent, package / "__init__.py"
    git(root, "config", "core.checkStat", "minimal")
    git(root, "config", "core.trustctime", "false")
    os.utime(file, (10**9, 10**9))  # before the index was written
    git(root, "update-index", "--refresh")
    (root / "other").write_text("x = 2\n")
    os.utime(root / "other", (10**9, 10**9))
    (root / "other").replace(file)
    assert git(root, "status", "--porcelain") == ""
    assert told(package) == (head(package), True)


def test_n33_the_commit_is_the_one_that_it_names(package: Path) -> None:
    """`git replace` shows another in its place."""
    root, first = package.parent.parent, head(package)
    (package / "__init__.py").write_text("x = 2\n")
    git(root, "commit", "-q", "-a", "-m", "second")
    git(root, "replace", "HEAD", first)
    git(root, "reset", "-q", "--hard")
    assert (package / "__init__.py").read_text() == "x = 1\n"
    assert told(package) == (head(package), True)


def test_n33_a_submodule_that_git_is_told_to_pass_over_counts(package: Path, tmp_path: Path) -> None:
    root = package.parent.parent
    tree(tmp_path / "part")
    git(root, "submodule", "--quiet", "add", str(repository(tmp_path / "part")), "src/mpadam/part")
    git(root, "commit", "-q", "-m", "second")
    git(root, "config", "diff.ignoreSubmodules", "all")
    assert told(package) == (head(package), False)
    (package / "part" / "config.yaml").write_text("a: 2\n")
    assert told(package) == (head(package), True)


def test_n33_a_folder_of_any_name(tmp_path: Path) -> None:
    root = tmp_path / " two\nlines"
    package = tree(root)
    repository(root)
    assert told(package) == (head(package), False)


@pytest.mark.parametrize("name", ["local.py", "fast.so", "part/plan.yaml"])
def test_n33_code_that_git_ignores_makes_the_source_dirty(package: Path, name: str) -> None:
    (package.parent.parent / ".git" / "info" / "exclude").write_text("*.log\nlocal*\n*.so\npart/\n")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "__init__.cpython-311.pyc").write_text("")
    (package / "train.log").write_text("")
    assert told(package) == (head(package), False)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("x = 1\n")
    assert told(package) == (head(package), True)


def test_n33_never_the_repository_that_contains_the_environment(tmp_path: Path) -> None:
    outer = repository(tmp_path / "thesis")
    installed = outer / ".venv" / "lib" / "python3.11" / "site-packages" / "mpadam"
    shutil.copytree(tree(tmp_path / "made"), installed)
    (outer / ".gitignore").write_text(".venv\n")
    unpacked = tree(outer / "mpadam-0.1.0")  # a tarball
    for package in (installed, unpacked):
        assert told(package) == (None, None)
        assert "installed, or its source is in no git repository" in origin(package)["commit_unknown"]
    git(outer, "add", "--force", ".")
    git(outer, "commit", "-q", "-m", "all of it")
    assert told(installed) == told(unpacked) == (None, None)


def test_n33_unpacked_over_another_repository_or_into_a_broken_one(tmp_path: Path) -> None:
    outer = repository(tmp_path / "outer")
    package = tree(outer)
    assert told(package) == (None, None)
    assert "no part of the git repository" in origin(package)["commit_unknown"]
    inner = tree(outer / "inner")
    (outer / "inner" / ".git").mkdir()  # git goes on to the repository above
    assert told(inner) == (None, None)


def test_n33_worktree_submodule_and_shallow_clone(package: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(clone, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "second")
    assert told(tmp_path / "tree/src/mpadam") == (head(tmp_path / "tree"), False)
    assert head(tmp_path / "tree") != head(clone)
    git(tmp_path, "clone", "-q", "--depth", "1", clone.as_uri(), "shallow")
    assert told(tmp_path / "shallow/src/mpadam") == (head(clone), False)
    outer = repository(tmp_path / "outer")
    git(outer, "submodule", "add", "-q", str(clone), "vendored")
    git(outer, "commit", "-q", "-m", "with a submodule")
    assert told(outer / "vendored/src/mpadam") == (head(clone), False)
    link = tmp_path / "link"
    link.symlink_to(clone / "src")
    assert told(link / "mpadam") == (head(clone), False)


def test_n33_dirty_is_what_could_change_a_run(package: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "results" / "mine").mkdir()
    (clone / "results" / "mine" / "summary.json").touch()
    (clone / "results" / "example" / "kept.txt").write_text("two\n")
    (clone / "results" / "example" / "new.txt").touch()
    (clone / "notes.txt").touch()
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").touch()
    assert told(package) == (head(clone), False)
    (package / "new.py").touch()
    assert told(package) == (head(clone), True)
    (package / "new.py").unlink()
    (clone / "config.yaml").write_text("a: 2\n")
    assert told(package) == (head(clone), True)


def wrapped_git(folder: Path, script: str) -> str:
    """A PATH with a `git` of one's own in front; $GIT is the real one."""
    real = shutil.which("git")
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\nGIT={real}\n{script}\n")
    (folder / "git").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_n33_a_clone_of_another_user(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git refuses such a repository, unless the one call says otherwise; an old git does not listen to that."""
    expected = head(package)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", wrapped_git(tmp_path / "a", 'GIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec $GIT "$@"'))
    with pytest.raises(subprocess.CalledProcessError):
        head(package)
    assert told(package) == (expected, False)
    refusal = "echo \"fatal: detected dubious ownership in repository at '/x'\" >&2; exit 128"
    monkeypatch.setenv("PATH", wrapped_git(tmp_path / "b", refusal))
    assert told(package) == (None, None)
    assert "dubious ownership" in origin(package)["commit_unknown"]


def test_n33_a_repository_s_own_monitor_is_not_started(package: Path, tmp_path: Path) -> None:
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    monitor.chmod(0o755)
    git(package, "config", "core.fsmonitor", str(monitor))
    assert told(package)[1] is False
    assert not (tmp_path / "started").exists()


def test_n33_without_git_or_an_answer_of_it(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told(package) == (None, None)
    assert origin(package)["commit_unknown"] == "git is not installed"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(source, "SECONDS", 0)  # a repository too large for the time
    assert told(package) == (None, None)
    assert "timed out" in origin(package)["commit_unknown"]
    shutil.rmtree(package.parents[1] / ".git")
    git(package.parents[1], "init", "-q")
    monkeypatch.setattr(source, "SECONDS", 30)
    assert told(package) == (None, None)  # no commit yet


def test_n33_a_wheel_has_the_hash_of_the_checkout_it_was_made_of(package: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages" / "mpadam"
    shutil.copytree(package, installed)
    (installed / "__pycache__").mkdir()
    (installed / "__pycache__" / "x.pyc").touch()
    assert digest(installed) == digest(package)
    (installed / "__init__.py").write_text("x = 2\n")
    assert digest(installed) != digest(package)


def test_n23_a_workflow_refuses_the_code_of_another_checkout(tmp_path: Path) -> None:
    check_checkout(PACKAGE.parents[1])
    check_checkout(tmp_path)  # without source: the package is installed
    copy = tmp_path / "two" / "src" / "mpadam"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    check_checkout(tmp_path / "two")
    (copy / "cli.py").write_text("")
    with pytest.raises(ValueError, match=r"run  make env  in .*two") as refusal:
        check_checkout(tmp_path / "two")
    assert str(PACKAGE) in str(refusal.value)
