"""docs/speed.md shows the kept table of kernels and bytes (`make test-triton` holds it against what is compiled)."""

from pathlib import Path

from tests.lowering.cases import CASES
from tests.lowering.table import kept, shown

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"


def test_the_page_shows_the_kept_table() -> None:
    assert shown(PAGE.read_text()) == kept()
    assert [(r["weights"], r["write-back"], int(r["row"])) for r in kept()] == [
        (c[0], c[1], c[2][1]) for c in CASES.values()
    ]
