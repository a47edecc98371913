"""The memory table against bytes counted by hand from the paper's shapes."""

from __future__ import annotations

import csv
import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from exhibits_made import from_folder

from mpadam.cli import main
from mpadam.exhibits.kit.table import to_csv
from mpadam.llama import PAPER_SIZES
from mpadam.measure.produce import footprints
from mpadam.study.measure import Memory


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return list(footprints(Memory(sizes=("60m",))))


def states_above(found: list[dict[str, Any]], size: str, optimizer: str, scope: str = "projections") -> float:
    wanted = {"model": size, "optimizer": optimizer, "apollo_scope": scope, "masters": "bf16"}
    [one] = [f for f in found if f | wanted == f]
    return float(one["states_bytes"]) - 4.0


def test_adamw_keeps_two_bf16_states_and_m_plus_adam_three(found: list[dict[str, Any]]) -> None:
    for size in ("60m",):
        assert states_above(found, size, "adamw") == pytest.approx(0)
        assert states_above(found, size, "m-plus-adam") == pytest.approx(2)
        assert states_above(found, size, "adamw-kahan") == pytest.approx(2)


def test_apollo_e_takes_what_the_shapes_say(found: list[dict[str, Any]]) -> None:
    """Rank 4 on the smaller side of each projection, everything else whole; a stored seed or two hardly counts."""
    for size in ("60m",):
        s = PAPER_SIZES[size]
        h, f = s.hidden_size, s.intermediate_size
        matrices = [(h, h)] * 4 + [(h, f)] * 3
        compressed = s.layers * sum(4 * max(shape) for shape in matrices)
        whole = s.parameters() - s.layers * sum(a * b for a, b in matrices)
        expected = 2 * (compressed + whole) / s.parameters()
        assert states_above(found, size, "m-plus-adam-apollo-e") == pytest.approx(expected, rel=1e-3)
        vocabulary = 2 * 4 * 32000
        norms = s.parameters() - s.layers * sum(a * b for a, b in matrices) - 2 * 32000 * h
        everything = 2 * (compressed + vocabulary + norms) / s.parameters()
        assert states_above(found, size, "m-plus-adam-apollo-e", "all_2d") == pytest.approx(everything, rel=2e-3)


def test_the_reference_has_fp32_masters_and_states(found: list[dict[str, Any]]) -> None:
    [one] = [f for f in found if (f["model"], f["masters"]) == ("60m", "fp32")]
    parts = ("weight", "compute_copy", "gradient", "states")
    assert [one[f"{part}_bytes"] for part in parts] == [4.0, 2.0, 2.0, 8.0]


def test_the_table_has_a_row_a_size_and_optimizer(found: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "measure").mkdir()
    kept = {"footprints": found}
    (tmp_path / "measure" / "memory.json").write_text(json.dumps(kept))
    table = from_folder("memory", tmp_path)
    rows = {(r[0].text, r[1].text): dict(zip(table.header, (e.text for e in r), strict=True)) for r in table.rows}
    labels = {f["label"] for f in found}
    assert set(rows) == set(product(("60m",), labels))
    assert rows["60m", "M+Adam"]["states above AdamW"] == "+2.000"
    assert rows["60m", "M+Adam"]["total, GB"] == f"{10 * 58_073_600 / 1e9:.2f}"
    tidy = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert {row["apollo_scope"] for row in tidy} == {"projections", "all_2d"}
    assert all(float(row["total_bytes"]) > 0 for row in tidy)


def test_files(tmp_path: Path) -> None:
    assert main(["measure", "memory", "--options", '{"sizes": ["60m"]}', "--out", str(tmp_path)]) == 0
    assert {p.name for p in (tmp_path / "tables").iterdir()} == {
        f"memory.{s}" for s in ("csv", "md", "tex", "txt", "json")
    }
