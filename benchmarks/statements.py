"""Lines and statements of `src/`, a row for each room and one for all: how large the program is.

    python benchmarks/statements.py [--files]

A statement is an `ast.stmt` node, so docstrings and imports count, and one statement on several lines counts once. A
room is a package or a top-level module of `mpadam`; what is outside it, such as the plugin of Snakemake, has a row too.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
MODULES = "(modules)"


@dataclass(frozen=True)
class Size:
    """Size of some files."""

    files: int = 0
    lines: int = 0
    statements: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.lines + other.lines, self.statements + other.statements)


def size(path: Path) -> Size:
    """Size of one source file."""
    text = path.read_text(encoding="utf-8")
    return Size(1, text.count("\n"), sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text))))


def room(path: Path) -> str:
    """Name of the room of a source file, given relative to `src/`."""
    inside = path.parts[1:]
    if path.parts[0] != "mpadam":
        return path.parts[0]
    return inside[0] if len(inside) > 1 else MODULES


def sizes(src: Path = SRC) -> dict[str, Size]:
    """Size of each room, in alphabetical order."""
    found: dict[str, Size] = defaultdict(Size)
    for path in sorted(src.rglob("*.py")):
        found[room(path.relative_to(src))] += size(path)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print lines and statements of src/.")
    parser.add_argument("--files", action="store_true", help="a row for each file, in place of each room")
    by_file = parser.parse_args().files
    found = {str(p.relative_to(SRC)): size(p) for p in sorted(SRC.rglob("*.py"))} if by_file else sizes()
    rows = [*found.items(), ("total", sum(found.values(), Size()))]
    width = max(len(name) for name, _ in rows)
    print(f"{'room':<{width}} {'files':>6} {'lines':>7} {'statements':>11}")
    for name, each in rows:
        print(f"{name:<{width}} {each.files:>6,} {each.lines:>7,} {each.statements:>11,}")


if __name__ == "__main__":
    main()
