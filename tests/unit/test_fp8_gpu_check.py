"""benchmarks/gpu_check.py on a CPU and tiny sizes: it works, and it notices faults."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mpadam.model.capabilities import COMPUTE
from mpadam.model.fp8.products import PRODUCTS, Product
from mpadam.optim.names import MASTERS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_small_run(gpu_check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cpu", "--small"]) == 0
    output = capsys.readouterr().out
    first_cells = [line.split(" | ")[0].removeprefix("| ") for line in output.splitlines() if line.startswith("| ")]
    regimes = [f"{masters}-{compute}" for masters in MASTERS for compute in COMPUTE]
    assert first_cells == ["size", *["tiny"] * 3, *["awkward"] * 3, "regime", *regimes]
    assert output.startswith("CPU (")
    assert f"torch {torch.__version__}" in output
    assert output.endswith("All as it should be.\n")


def test_all_shapes_of_the_paper_are_in_the_full_run(gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    monkeypatch.setattr(gpu_check, "compare_product", lambda *args: (shapes.append((args[0], args[3])), []))
    list(gpu_check.products(gpu_check.FULL, torch.device("cpu")))
    assert len(shapes) == 12
    assert shapes[-3:] == [("1b", (2048, 2048)), ("1b", (2048, 5461)), ("1b", (5461, 2048))]


def test_a_wrong_product_is_noticed(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    native = PRODUCTS["native"]
    wrong = Product(native.cast, lambda a, b, *rest: native.multiply(a, b, *rest) * 1.2)
    monkeypatch.setitem(PRODUCTS, "native", wrong)
    monkeypatch.setattr(gpu_check, "trainings", lambda *_: iter(()))
    assert gpu_check.main(["--device", "cpu", "--small"]) == 1
    assert "tiny gate, up: output at 14.0 dB" in capsys.readouterr().out  # a fifth is -14 dB
