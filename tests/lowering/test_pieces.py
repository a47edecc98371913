"""The compiled passes of `mpadam.model.compiled` as a GPU would run them, without one (issue 18, items 6 and 10).

Kernels and bytes are those of docs/speed.md, kernels compile for sm_90, and interpreted they compute what eager code
does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.lowering.apart import MARKS, look

pytestmark = MARKS

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
#: piece -> how its row of the page begins
ROWS = {
    "loss": "arithmetic of the loss",
    "cast": "cast to FP8",
    "norm": "RMSNorm",
    "add_norm": "sum and RMSNorm",
    "rotary": "rotary embedding",
    "gated": "SwiGLU",
}
#: Largest differences, relative. The loss is a sum of float32 logarithms, which a processor's exp and order may change;
#: what is rounded to bf16 afterwards shows nothing of that.
CLOSE = {("loss", "output 0"): 1e-6}


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return look("pieces", list(ROWS), tmp_path_factory.mktemp("pieces"))


def shown(piece: str) -> tuple[list[float], list[float]]:
    """Kernels and bytes of a compiled piece, forward and backward, as on the page."""
    (row,) = re.findall(rf"^\| {ROWS[piece]}.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    kernels, moved = ([float(n) for n in re.findall(r"[\d.]+", cell)] for cell in row.split("|")[-3:-1])
    return kernels, moved


@pytest.mark.parametrize("piece", ROWS)
def test_i18_kernels_and_bytes_are_those_of_the_page(looked_at: dict[str, dict[str, Any]], piece: str) -> None:
    """Of the 60m model."""
    found = looked_at[piece]
    assert (found["kernels"], [round(each, 1) for each in found["bytes"]]) == shown(piece)


@pytest.mark.parametrize("piece", ROWS)
def test_i18_kernels_compile_for_sm_90_and_sums_are_not_chosen_by_timing(
    looked_at: dict[str, dict[str, Any]], piece: str
) -> None:
    """A resumed run has the same bits because a kernel that sums has one configuration."""
    kernels = looked_at[piece]["assembled"]
    assert kernels
    for kernel, counts in kernels.items():
        assert counts["spills"] == 0, kernel
        assert counts["configurations"] == 1 or not counts["sums"], kernel
    assert any(counts["sums"] for counts in kernels.values()) == (piece in ("loss", "norm", "add_norm"))


@pytest.mark.parametrize("piece", ROWS)
def test_i18_interpreted_kernels_compute_what_eager_code_does(looked_at: dict[str, dict[str, Any]], piece: str) -> None:
    """Bit for bit but for CLOSE, forward and backward."""
    for name, difference in looked_at[piece]["differences"].items():
        assert difference <= CLOSE.get((piece, name), 0.0), (name, difference)
