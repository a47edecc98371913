"""What is said of a curve: the line and slope of known ones, a table, a plot, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from curves import Curve, Point, draw, read_curves, report
from PIL import Image


def curve(seconds: Callable[[int], float], sizes: tuple[int, ...] = (10, 100, 1000, 10_000), name: str = "x") -> Curve:
    return Curve(name, "runs", tuple(Point(n, (0.9 * seconds(n), seconds(n), 1.3 * seconds(n))) for n in sizes))


def test_the_line_of_a_line() -> None:
    found = curve(lambda n: 2.0 + 0.003 * n)
    assert found.line == pytest.approx((2.0, 0.003))
    assert 0.8 < found.slope < 1


def test_slopes_of_powers() -> None:
    assert curve(lambda n: 1e-3 * n).slope == pytest.approx(1)
    assert curve(lambda n: 1e-6 * n**2).slope == pytest.approx(2)
    assert curve(lambda n: 4.0).slope == pytest.approx(0)


def test_no_part_of_a_line_is_negative() -> None:
    fixed, each = curve(lambda n: 1e-6 * n**1.5).line
    assert fixed == 0
    assert each > 0
    fixed, each = curve(lambda n: 3.0 - 1e-5 * n, sizes=(10, 1000, 9000)).line
    assert each == 0
    assert 2.9 < fixed < 3


@pytest.mark.parametrize("sizes", [(10,), (10, 10), (100, 10), (0, 10)])
def test_sizes_that_make_no_curve_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"sizes .* each larger than the one before"):
        curve(lambda n: 1.0, sizes)


@pytest.mark.parametrize("content", ["", "[]", '{"curves": [{"name": "x"}]}', '{"rows": []}'])
def test_another_file_is_no_growth(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=r"x\.json: not a growth\.json"):
        read_curves(tmp_path / "x.json")


def test_a_report_keeps_every_sample_and_can_be_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = [curve(lambda n: 2.0 + 0.003 * n, name="aggregate"), curve(lambda n: 1.0 + 0.001 * n, name="site")]
    curves.append(Curve("a step", "parameters", (Point(10**6, (0.1, 0.2)), Point(10**7, (1.0, 2.0))), per=10**6))
    rows = report(curves, {"rounds": 3}, out=tmp_path)
    assert [row["name"] for row in rows] == ["aggregate", "site", "a step"]
    assert rows[0]["further"] == pytest.approx(3.0)
    assert "| aggregate | runs | 10 100 1000 10000 | 2.03 2.3 5 32 | 2 | 3 | 1,000 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "growth.json").read_text())["about"] == {"rounds": 3}
    assert read_curves(tmp_path / "growth.json") == curves
    draw(curves, tmp_path / "again.png")
    with Image.open(tmp_path / "growth.png") as one, Image.open(tmp_path / "again.png") as two:
        assert one.size == two.size
        assert one.tobytes() == two.tobytes()
        assert len(one.convert("RGB").getcolors(maxcolors=10**6) or ()) > 3  # lines of several colours
