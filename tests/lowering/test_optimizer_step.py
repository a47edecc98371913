"""The compiled optimizer step as a GPU would run it, without one: lowered to Triton for an H100, compiled to sm_90 by
Triton's own ptxas, and run in Triton's interpreter (issue 18, item 10). `make test-triton` installs Triton and runs it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.lowering.apart import MARKS, look
from tests.lowering.cases import CASES
from tests.lowering.table import found, kept

pytestmark = MARKS

#: of M+Adam for each weight: a GPU's divisions are approximate, those by scales must not be
DIVISIONS, ROOTS = 5, 2


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """case -> what `interpreted` says of it, and under `assembled` what that says of each kernel."""
    return look("interpreted", list(CASES), tmp_path_factory.mktemp("lowering"))


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
