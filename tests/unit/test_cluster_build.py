"""containers/build.py: which base an image is built from, and what its build is told of the machine's pip."""

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """The script as a module; it is part of no package."""
    spec = importlib.util.spec_from_file_location("image_build", ROOT / "containers/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("base", "pinned"),
    [
        ("nvidia/cuda:13.0.2-devel", "nvidia/cuda@sha256:ab"),
        ("nvidia/cuda@sha256:ab", "nvidia/cuda@sha256:ab"),
        ("localhost:5000/cuda", "localhost:5000/cuda@sha256:ab"),
        ("localhost:5000/nvidia/cuda:13", "localhost:5000/nvidia/cuda@sha256:ab"),
        ("ubuntu", "ubuntu@sha256:ab"),
    ],
)
def test_a_base_is_built_from_by_its_digest(build: ModuleType, base: str, pinned: str) -> None:
    assert build.pinned(base, "sha256:ab") == pinned


def test_the_default_base_is_a_tag_with_a_version(build: ModuleType) -> None:
    assert build.default_base().startswith("nvidia/cuda:13.")
    assert "latest" not in build.default_base()


def test_the_digest_is_the_names_own_or_skopeos_word(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.digest("nvidia/cuda@sha256:ab") == "sha256:ab"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="--base-digest sha256"):
        build.digest("nvidia/cuda:13")
    (tmp_path / "skopeo").write_text("#!/bin/sh\necho sha256:of-$4\n")
    (tmp_path / "skopeo").chmod(0o755)
    assert build.digest("nvidia/cuda:13") == "sha256:of-docker://nvidia/cuda:13"


def test_what_pip_is_told_names_paths_of_the_image_and_binds_their_folders(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    (tmp_path / "ca.crt").touch()
    environment, folders = build.pip_environment(
        {
            "index-url": "https://example.org/simple",
            "extra-index-url": f"file://{tmp_path}/simple",
            "cert": f"{tmp_path}/ca.crt",
        }
    )
    assert environment == {
        "APPTAINERENV_PIP_INDEX_URL": "https://example.org/simple",
        "APPTAINERENV_PIP_EXTRA_INDEX_URL": f"file:///media/host{tmp_path}/simple",
        "APPTAINERENV_PIP_CERT": f"/media/host{tmp_path}/ca.crt",
    }
    assert folders == [tmp_path]


def test_an_image_is_made_of_what_git_knows(build: ModuleType, tmp_path: Path) -> None:
    build.copy_source(tmp_path)
    copied = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "envs/cpu.txt", "containers/install.sh", "src/mpadam/__init__.py"} <= copied
    assert not any(name.endswith((".sif", ".pyc")) or name.startswith(("tests", "results")) for name in copied)
    assert os.access(tmp_path / "containers/install.sh", os.R_OK)


def test_n33_git_variables_and_repositories_above_do_not_decide_what_is_built(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "tree"
    (there / "src").mkdir(parents=True)
    (there / "src" / "a.py").touch()
    (there / "src" / "a.pyc").touch()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    build.copy_source(tmp_path / "here")
    assert (tmp_path / "here" / "src" / "mpadam" / "cli.py").is_file()
    monkeypatch.setattr(build, "ROOT", there)
    assert build.commit() == "unknown"
    build.copy_source(tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").rglob("*.*")] == ["a.py"]
