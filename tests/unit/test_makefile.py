"""`make env` knows the folder and the Python that an environment was made with. A stand-in for Python and pip notes
what it was asked for; the rest is the real Makefile."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """\
#!/bin/sh
# {version}
case "$*" in
  *"-m venv"*)
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    echo "command = $0 -m venv $PWD/$3" >"$3/pyvenv.cfg" && echo venv >>"$PWD/calls" ;;
  *"-m pip"*)
    test ! -e "$PWD/killed" && test -z "$PYTHONPATH$PIP_TARGET$PIP_PYTHON$PIP_DRY_RUN" && echo pip >>"$PWD/calls" ;;
  *"import pip"*) test ! -e "$PWD/no-pip" ;;
  *_base_executable*) echo "{path}" ;;
  *"version_info[:2]"*) echo "{version}" ;;
esac
"""


def python(folder: Path, version: str) -> Path:
    path = folder / f"python{version}"
    path.write_text(PYTHON.format(version=version, path=path))
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a blank in its name and the parts of a checkout that `make env` looks at."""
    folder = tmp_path / "check out"
    (folder / "envs").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "envs/cpu.txt"):
        shutil.copy(ROOT / name, folder / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(python(tmp_path, "3.11"))
    return folder


def make(folder: Path, *arguments: str, **environment: str) -> list[str]:
    """What `make` asked Python for."""
    (folder / "calls").write_text("")
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    env = {**inherited, "PATH": path, **environment}
    subprocess.run(["make", *arguments], cwd=folder, env=env, check=False, capture_output=True)
    return (folder / "calls").read_text().split()


NEW = ["venv", "pip", "pip"]


def test_an_environment_is_made_once(checkout: Path) -> None:
    assert make(checkout, "env") == NEW
    assert make(checkout, "env") == []
    assert make(checkout, "env", PYTHONHOME="/nowhere", PYTHONPATH="/nowhere") == []
    (checkout.parent / "another name").symlink_to(checkout)
    assert make(checkout.parent / "another name", "env") == []
    make(checkout, "clean")
    assert make(checkout, "env") == NEW


@pytest.mark.parametrize("how", ["cp", "mv"])
def test_n23_a_copied_or_moved_checkout_makes_its_environment_again(checkout: Path, how: str) -> None:
    make(checkout, "env")
    there = checkout.parent / "two"
    subprocess.run({"cp": ["cp", "-a"], "mv": ["mv"]}[how] + [str(checkout), str(there)], check=True)
    assert make(there, "env") == NEW
    assert str(there) in (there / ".venv" / "pyvenv.cfg").read_text()
    assert make(there, "env") == []
    if how == "cp":
        assert make(checkout, "env") == []


def test_n23_a_link_to_another_checkout_s_environment_leaves_that_one_alone(checkout: Path) -> None:
    make(checkout, "env")
    there = checkout.parent / "two"
    shutil.copytree(checkout, there, ignore=shutil.ignore_patterns(".venv"))
    (there / ".venv").symlink_to(checkout / ".venv")
    assert make(there, "env") == NEW
    assert make(checkout, "env") == []


def test_n23_another_python_makes_the_environment_again_and_the_default_one_does_not(checkout: Path) -> None:
    make(checkout, "env")
    newer = python(checkout.parent, "3.12")
    assert make(checkout, "env", f"PYTHON={newer}") == NEW
    assert make(checkout, "env", f"PYTHON={newer}") == []
    assert make(checkout, "env") == []
    (checkout / ".venv" / "bin" / "python").unlink()
    assert make(checkout, "env") == NEW
    assert make(checkout, "env", "PYTHON=/nowhere/python") == []
    assert (checkout / ".venv").exists()


def test_an_interrupted_set_up_goes_on_where_it_can(checkout: Path) -> None:
    (checkout / "killed").touch()
    assert make(checkout, "env") == ["venv"]
    (checkout / "killed").unlink()
    assert make(checkout, "env") == ["pip", "pip"]
    (checkout / "no-pip").touch()  # ended while pip was installed, or replaced itself
    assert make(checkout, "env")[0] == "venv"


def test_n25_packages_of_the_shell_do_not_count_and_pip_installs_here(checkout: Path) -> None:
    assert make(checkout, "env", PYTHONPATH="/elsewhere", PIP_TARGET="/elsewhere") == NEW


@pytest.mark.parametrize(("variable", "value"), [("PIP_PYTHON", "/elsewhere/python"), ("PIP_DRY_RUN", "1")])
def test_pip_installs_into_the_environment_whatever_the_shell_says(checkout: Path, variable: str, value: str) -> None:
    assert make(checkout, "env", **{variable: value}) == NEW
