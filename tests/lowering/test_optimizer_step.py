"""The compiled optimizer step as a GPU would run it, without one: lowered to Triton for an H100, compiled to sm_90 by
Triton's own ptxas, and run in Triton's interpreter (issue 18, item 10). `make test-triton` installs Triton and runs it.

Torch's CPU build must not see Triton in other tests, so everything runs in processes of its own.
"""

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

from tests.lowering.cases import CASES
from tests.lowering.table import found, kept

ROOT = Path(__file__).parents[2]
TRITON = ROOT / ".venv" / "triton"
PROCESSES = 2

pytestmark = [
    pytest.mark.triton,
    pytest.mark.timeout(0),  # the first test waits for all processes
    pytest.mark.skipif(not TRITON.is_dir(), reason="Triton is not installed: make test-triton"),
]

#: of M+Adam for each weight: a GPU's divisions are approximate, those by scales must not be
DIVISIONS, ROOTS = 5, 2


def look(folder: Path, cases: Sequence[str]) -> None:
    folder.mkdir()
    python = (sys.executable, "-m")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "TRITON_"))}
    path = os.pathsep.join(map(str, (TRITON, ROOT, ROOT / "benchmarks")))
    env |= {"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    env |= {"TRITON_CACHE_DIR": str(folder / "triton"), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for module, more in (("interpreted", {"TRITON_INTERPRET": "1"}), ("assembled", {})):
        command = [*python, f"tests.lowering.{module}", str(folder), *cases]
        done = subprocess.run(command, cwd=ROOT, env=env | more, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """case -> what `interpreted` says of it, and under `assembled` what that says of each kernel."""
    folder, names = tmp_path_factory.mktemp("lowering"), list(CASES)
    parts = {folder / str(n): names[n::PROCESSES] for n in range(PROCESSES)}
    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(look, parts.keys(), parts.values()))
    return {
        name: json.loads((part / f"{name}.json").read_text())
        | {"assembled": json.loads((part / f"{name}.assembled.json").read_text())}
        for part, cases in parts.items()
        for name in cases
    }


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_give_the_eager_bits(looked_at: dict[str, dict[str, Any]], name: str) -> None:
    """All tensors of the step, after two. The eager step's roots are correctly rounded, as a GPU's are: those of MKL,
    which torch uses on a CPU, are off by one in the last place for a fifth of all numbers."""
    differences = looked_at[name]["differences"]
    assert differences.keys() >= {"parameter", "m", "v", "v_e"}
    assert not {key: count for key, count in differences.items() if count}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compile_for_sm_90(looked_at: dict[str, dict[str, Any]], name: str) -> None:
    """No kernel keeps registers in memory or joins a product with a sum, and no scale is divided approximately."""
    for kernel, counts in looked_at[name]["assembled"].items():
        assert counts["spills"] == 0, kernel
        assert counts["fused"] == 0, kernel
        assert counts["approximate roots"] == 0, kernel
        assert ROOTS * counts["approximate divisions"] == DIVISIONS * counts["roots"], kernel


@pytest.mark.parametrize("name", CASES)
def test_kernels_and_bytes_are_those_of_the_table(looked_at: dict[str, dict[str, Any]], name: str) -> None:
    assert found(CASES[name], looked_at[name]) == kept()[list(CASES).index(name)]
