"""Runs what needs Triton in processes of its own: torch's CPU build must not see Triton in other tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TRITON = ROOT / ".venv" / "triton"
PROCESSES = 2
MARKS = [
    pytest.mark.triton,
    pytest.mark.timeout(0),  # the first test waits for all processes
    pytest.mark.skipif(not TRITON.is_dir(), reason="Triton is not installed: make test-triton"),
]


def look(module: str, cases: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """case -> what a module of this folder says of it, and under `assembled` what that says of each kernel."""
    parts = {folder / str(n): cases[n::PROCESSES] for n in range(PROCESSES)}
    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(_look_at, parts.keys(), parts.values(), [module] * PROCESSES))
    return {
        name: json.loads((part / f"{name}.json").read_text())
        | {"assembled": json.loads((part / f"{name}.assembled.json").read_text())}
        for part, names in parts.items()
        for name in names
    }


def _look_at(folder: Path, cases: Sequence[str], interpreting: str) -> None:
    folder.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "TRITON_"))}
    path = os.pathsep.join(map(str, (TRITON, ROOT, ROOT / "benchmarks")))
    env |= {"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    env |= {"TRITON_CACHE_DIR": str(folder / "triton"), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for module, more in ((interpreting, {"TRITON_INTERPRET": "1"}), ("assembled", {})):
        command = [sys.executable, "-m", f"tests.lowering.{module}", str(folder), *cases]
        done = subprocess.run(command, cwd=ROOT, env=env | more, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
