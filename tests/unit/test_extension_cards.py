"""A new rule and a new storage format are one file each: no other file of the program changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpadam.cards import cards_in
from mpadam.optim.card import Rule

ROOT = Path(__file__).parents[2]
CARDS = Path(__file__).parent / "extension_cards"


def test_a_rule_and_a_format_are_one_file_each(tmp_path: Path) -> None:
    """Configuration, plan, training, probes, memory, Table 1, Figure 1 and doctor: see extension_cards/drive.py."""
    program = shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CARDS / "lion.py", program / "mpadam/optim/rules")
    shutil.copy(CARDS / "int8.py", program / "mpadam/numerics/formats")
    command = [sys.executable, str(CARDS / "drive.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(program)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("known everywhere\n")


def test_two_cards_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "two_lions"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("lion", "other"):
        shutil.copy(CARDS / "lion.py", package / f"{name}.py")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"two_lions.other: another card of two_lions is named 'lion'"):
        cards_in("two_lions", Rule)
