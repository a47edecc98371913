"""The weight store is the only place that rounds weights: read off the calls of the program."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "mpadam"
ROUNDING = {"encode", "rounding_on", "round_bf16", "round_to_grid", "round_on_scale", "saturating_cast"}
#: who else calls a rounding, of what
OTHERS = {
    "model/fp8/products.py": {"saturating_cast"},  # operands of FP8 products
    "diagnostics/dataflow.py": {"round_to_grid"},  # whether a tensor has values of a format
    "probes/layers.py": {"rounding_on"},  # the neighbours of a stored weight
    "model/capabilities.py": {"encode"},  # bytes of zeros
}


def calls(path: Path) -> set[str]:
    """Names of the roundings that a module calls; `text.encode()` and `text.encode("utf-8")` are none.

    `data/` encodes text as tokens, and is left out by the test.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            of_text = name == "encode" and (not node.args or isinstance(node.args[0], ast.Constant))
            if name in ROUNDING and not of_text:
                found.add(name)
    return found


def draws(path: Path) -> bool:
    """Whether a module makes a picture: it may round numbers on its axes."""
    return "matplotlib" in path.read_text()


def test_only_the_store_rounds_weights() -> None:
    modules = {path.relative_to(SOURCE).as_posix(): calls(path) for path in SOURCE.rglob("*.py") if not draws(path)}
    outside = {name: found for name, found in modules.items() if found and not name.startswith(("numerics/", "data/"))}
    assert outside.pop("optim/store.py") == {"encode", "rounding_on", "round_bf16"}
    assert outside == OTHERS
