"""A clone made under the settings of another system has the same bytes (N35)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND = (
    *ROOT.glob("results/example/*/runs.tar.xz"),
    *ROOT.glob("results/example/*/paper/tables/table2.*"),
    *ROOT.glob("results/example/*/data/**/*.json"),
    *ROOT.glob("docs/images/*.png"),
    *(ROOT / name for name in ("config.yaml", "Makefile", "Snakefile", ".gitignore", "src/mpadam/cli.py")),
    *(ROOT / name for name in ("tests/golden/losses.json", "containers/install.sh", "studies/pilot.yaml")),
)


def git(*arguments: str) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env = {**clean, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *who, *arguments], env=env, check=True, capture_output=True)


@pytest.mark.parametrize(
    "settings", ["core.autocrlf=true", "core.autocrlf=input", "core.eol=crlf", "core.filemode=false"]
)
def test_n35_a_clone_made_on_another_system_has_the_same_bytes(tmp_path: Path, settings: str) -> None:
    names = [path.relative_to(ROOT) for path in (ROOT / ".gitattributes", *BOUND)]
    here = tmp_path / "here"
    for name in names:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, here / name)
    git("init", "-q", str(here))
    git("-C", str(here), "-c", settings, "add", "--force", ".")
    git("-C", str(here), "commit", "-q", "-m", "all")
    git("clone", "-q", "-c", settings, str(here), str(tmp_path / "there"))
    assert len(names) > 15
    for name in names:
        assert (tmp_path / "there" / name).read_bytes() == (ROOT / name).read_bytes(), name


def test_n35_no_two_names_are_one_where_case_does_not_count() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0") if listed.returncode == 0 else [str(p) for p in ROOT.glob("src/**/*")]
    assert len(names) == len({name.casefold() for name in names})
    assert all(name.isascii() for name in names)  # one form on systems that normalise names, too
