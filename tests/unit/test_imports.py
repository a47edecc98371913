"""Imports between the rooms of `src/mpadam` run downwards only, those inside functions and for type checkers too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "mpadam"

#: Rooms from the bottom up: packages, and modules of the package itself. A room imports those before it. `optim` is
#: below `study`, since a study names optimizers and an optimizer in somebody's own training loop knows no study; `plan`
#: is below `training`, which reports its speed by the same FLOPs.
ROOMS = (
    *(
        "presence",
        "atomic",
        "canonical",
        "stored",
        "exits",
        "extras",
        "durations",
        "llama",
        "inherited",
        "source",
    ),
    "imports",
    *("machine", "compiler", "cards"),
    *("numerics", "optim", "study", "plan", "model", "data", "probes", "training", "status", "workflow"),
    *(
        "analysis",
        "claims",
        "diagnostics",
        "measure",
        "exhibits",
        "site",
        "reference",
        "arguments",
        "commands",
        "cli",
        "__main__",
    ),
)


def imported(source: str) -> Iterator[str]:
    """Dotted names below `mpadam` that a source imports, wherever the statement is."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("mpadam.") for name in names if name.startswith("mpadam."))


def imports() -> set[tuple[str, str]]:
    """(module, room that it imports) for all imports between rooms, apart from those of names of the package itself."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        targets = {name.partition(".")[0] for name in imported(path.read_text(encoding="utf-8"))}
        found |= {(module, target) for target in targets - {"__version__", module.partition(".")[0]}}
    return {(module, target) for module, target in found if module != "__init__"}  # the façade, of lazy imports alone


def runs_upwards(module: str, target: str) -> bool:
    return ROOMS.index(target) > ROOMS.index(module.partition(".")[0])


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(ROOMS)


def test_no_import_runs_upwards() -> None:
    """Since the order is a total one, no circle of imports between rooms is left either."""
    assert {pair for pair in imports() if runs_upwards(*pair)} == set()


@pytest.mark.parametrize(
    "statement",
    [
        "from mpadam.training.loop import train",
        "import mpadam.training.loop",
        "from mpadam import training",
        "def f() -> None:\n    from mpadam.training import loop",
        "if TYPE_CHECKING:\n    from mpadam.training.loop import Ended",
    ],
)
def test_every_form_of_import_is_seen(statement: str) -> None:
    assert {name.partition(".")[0] for name in imported(statement)} == {"training"}
    assert runs_upwards("study.grid", "training")
    assert not runs_upwards("status.report", "training")


def test_rooms_that_snakemake_and_quick_commands_load_need_no_torch() -> None:
    """All modules of these rooms, with whatever they import on top."""
    rooms = ("study", "plan", "status", "workflow")
    modules = [f"mpadam.{room}.{path.stem}" for room in rooms for path in (PACKAGE / room).glob("*.py")]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {modules}]"
    code += "; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
