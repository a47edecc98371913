"""The count of lines and statements of `src/` (benchmarks/statements.py)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "statements.py"


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("statements", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "statements", module)  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def test_statements_are_counted_by_room(statements: ModuleType, tmp_path: Path) -> None:
    """Docstrings, imports and nested statements count; one on several lines counts once."""
    room, plugin = tmp_path / "mpadam" / "optim" / "inner", tmp_path / "plugin"
    for folder in (room, plugin):
        folder.mkdir(parents=True)
    (room / "rules.py").write_text('"""Doc."""\n\nimport os\n\n\ndef f(\n    x,\n):\n    if x:\n        return 1\n')
    (tmp_path / "mpadam" / "cli.py").write_text("x = 1; y = 2\n")
    (plugin / "__init__.py").write_text("")
    sizes = statements.sizes(tmp_path)
    assert sizes == {
        "(modules)": statements.Size(1, 1, 2),
        "optim": statements.Size(1, 10, 5),
        "plugin": statements.Size(1, 0, 0),
    }
    assert sum(sizes.values(), statements.Size()) == statements.Size(3, 11, 7)
