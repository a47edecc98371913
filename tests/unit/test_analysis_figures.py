"""Figure 4 in every state a study can be in, and pictures that are the same bytes for the same runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from analysis_fakes import FakeStudy, fake_study, perplexity
from exhibits_made import maker
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.text import Text

from mpadam.analysis.cells import Cell, CellKey
from mpadam.analysis.collect import collect
from mpadam.analysis.style import OPTIMIZERS, REGIMES, optimizer_styles, regime_styles
from mpadam.exhibits.kit.perplexity import panel_of
from mpadam.exhibits.kit.pictures import TEXT, WIDTH, Picture, with_numbered_clips, write_picture

BF16 = {"model": "tiny", "regime": "bf16-bf16", "optimizer": "adamw"}


@pytest.fixture
def study(tmp_path: Path) -> FakeStudy:
    return fake_study(tmp_path / "results")


def draw(study: FakeStudy) -> Picture:
    return maker("figure4")(collect(study.config, study.paths))


def panel(picture: Picture, title: str) -> Axes:
    return next(axes for axes in picture.figure.axes if axes.get_title().startswith(title))


def line(axes: Axes, study: FakeStudy, **labels: str) -> np.ndarray:
    """Means of the one line of this optimizer and regime."""
    colour = optimizer_styles(study.config.optimizers)[labels["optimizer"]].colour
    dash = regime_styles(study.config.regimes)[labels["regime"]]
    pattern = None if dash == "-" else tuple(dash[1])
    [found] = [one for one in drawn_lines(axes) if to_hex(one.get_color()) == colour.lower() and dashes(one) == pattern]
    return np.asarray(found.get_ydata(), dtype=float)


def drawn_lines(axes: Axes) -> list[Line2D]:
    return [one for one in axes.get_lines() if one.get_marker() != "x"]


def dashes(one: Line2D) -> tuple[float, ...] | None:
    pattern = one._unscaled_dash_pattern[1]  # type: ignore[attr-defined]  # what get_linestyle does not tell
    return None if pattern is None else tuple(pattern)


def bars(axes: Axes) -> int:
    """Bars of one standard deviation."""
    found = [s for c in axes.collections if isinstance(c, LineCollection) for s in c.get_segments()]
    return sum(bool(np.isfinite(segment).all()) for segment in found)


def test_a_panel_a_model_and_a_line_an_optimizer_and_regime(study: FakeStudy) -> None:
    picture = draw(study)
    assert [axes.get_title() for axes in picture.figure.axes] == ["tiny (1x = 50 steps)", "small (1x = 50 steps)"]
    axes = panel(picture, "tiny")
    expected = [np.mean([perplexity(study.key(**BF16, budget=b, seed=s)) for s in (0, 1)]) for b in (1, 2)]
    assert line(axes, study, **BF16) == pytest.approx(expected)
    assert bars(axes) == 8
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == "validation perplexity"


def test_every_budget_has_its_tick(study: FakeStudy) -> None:
    picture = draw(study)
    picture.figure.draw_without_rendering()
    for axes in picture.figure.axes:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1x", "2x"]
        assert len(axes.get_yticks()) >= 3


def test_T6_a_diverged_cell_breaks_the_line_and_has_a_cross(study: FakeStudy) -> None:
    study.diverge(**BF16, budget=2, seed=0)
    picture = draw(study)
    axes = panel(picture, "tiny")
    assert np.isnan(line(axes, study, **BF16)).tolist() == [False, True]
    crosses = [one for one in axes.get_lines() if one.get_marker() == "x" and len(one.get_xdata())]
    assert len(crosses) == 1
    assert "1 with a diverged run" in picture.caption
    assert "a run diverged" in [text.get_text() for text in picture.figure.legends[0].get_texts()]


def test_T6_a_missing_cell_breaks_the_line_and_is_counted(study: FakeStudy) -> None:
    for seed in (0, 1):
        study.remove(**BF16, budget=1, seed=seed)
    picture = draw(study)
    assert np.isnan(line(panel(picture, "tiny"), study, **BF16)).tolist() == [True, False]
    assert "Of 16 cells, 1 have no result yet." in picture.caption


def test_T6_one_seed_has_no_bar(tmp_path: Path) -> None:
    picture = draw(fake_study(tmp_path / "results", seeds=[0]))
    assert [bars(axes) for axes in picture.figure.axes] == [0, 0]
    assert "(n = 1)" in picture.caption


def test_T6_a_panel_without_results_says_so(study: FakeStudy, tmp_path: Path) -> None:
    shutil.rmtree(study.paths.root / "runs" / "small")
    picture = draw(study)
    assert [text.get_text() for text in panel(picture, "small").texts] == ["no completed cell"]
    assert not panel(picture, "tiny").texts
    shutil.rmtree(study.paths.root)
    assert all(path.stat().st_size for path in write_picture(draw(study), tmp_path / "figures"))


def test_one_budget_has_its_regimes_along_the_axis_and_says_so(tmp_path: Path) -> None:
    """A single tick told nothing, and dashes of lines of one point told no regime."""
    study = fake_study(tmp_path / "results", budgets=[4])
    picture = draw(study)
    axes = picture.figure.axes[0]
    assert axes.get_title() == "tiny (1x = 50 steps), 4x"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(regime_styles(study.config.regimes))
    assert "against the training budget" not in picture.caption
    assert "by regime" in picture.caption


def test_a_point_is_drawn_for_every_cell_that_has_a_mean_and_for_no_other(study: FakeStudy) -> None:
    """Seaborn aggregates nothing: what is drawn are the cells."""
    study.diverge(**BF16, budget=2, seed=0)
    picture = draw(study)
    heights = [y for axes in picture.figure.axes for one in drawn_lines(axes) for y in one.get_ydata()]
    means = picture.data["val_ppl_mean"].dropna()
    assert sorted(y for y in heights if np.isfinite(y)) == pytest.approx(sorted(means))
    assert len(means) == 15


def test_all_text_of_a_figure_has_one_size_and_all_figures_one_width(study: FakeStudy) -> None:
    figure = draw(study).figure
    figure.draw_without_rendering()
    words = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert {text.get_fontsize() for text in words} == {TEXT}
    assert figure.get_figwidth() == WIDTH


def test_the_record_of_a_figure_has_its_size_in_css_pixels(study: FakeStudy, tmp_path: Path) -> None:
    """Issue 21 A: shown at its own size, a figure's text of 9 points is 12 pixels high, as in every other figure."""
    picture = draw(study)
    write_picture(picture, tmp_path)
    record = json.loads((tmp_path / "figure4.json").read_text())
    points = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', (tmp_path / "figure4.svg").read_text())
    assert points is not None
    assert [record["width"], record["height"]] == pytest.approx([float(n) * 4 / 3 for n in points.groups()], abs=1)
    assert record["width"] == WIDTH * 96


def test_n_is_the_range_of_the_cells(study: FakeStudy) -> None:
    study.remove(**BF16, budget=1, seed=0)
    assert "(n = 1 to 2)" in draw(study).caption


def test_nothing_sticks_out_of_the_figure_or_overlaps(study: FakeStudy) -> None:
    figure = draw(study).figure
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
    assert all(box is not None for box in boxes)
    for index, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


def test_the_same_runs_give_the_same_bytes_whatever_the_users_settings(study: FakeStudy, tmp_path: Path) -> None:
    import matplotlib as mpl

    first = write_picture(draw(study), tmp_path / "a")
    with mpl.rc_context({"font.size": 20, "svg.hashsalt": None, "axes.facecolor": "red"}):
        second = write_picture(draw(study), tmp_path / "b")
    assert [path.suffix for path in first] == [".pdf", ".svg", ".png", ".json", ".csv"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert not any(mark in (tmp_path / "a" / "figure4.svg").read_text() for mark in ("<dc:date>", "2026"))
    assert b"CreationDate" not in (tmp_path / "a" / "figure4.pdf").read_bytes()


def test_clip_paths_are_numbered_since_the_last_digits_of_coordinates_differ(study: FakeStudy, tmp_path: Path) -> None:
    svg = '<clipPath id="p{}"><rect/></clipPath><path clip-path="url(#p{})" id="p0123456789x"/><a id="pfedcba9876"/>'
    one, other = (svg.format(name, name).encode() for name in ("0123456789", "abcdef0123"))
    assert with_numbered_clips(one, "x") == with_numbered_clips(other, "x")
    assert with_numbered_clips(one, "x").count(b"x-clip-0") == 2
    assert b"p0123456789x" in with_numbered_clips(one, "x")
    assert b"pfedcba9876" in with_numbered_clips(one, "x")
    write_picture(draw(study), tmp_path)
    drawn = (tmp_path / "figure4.svg").read_text()
    used, named = set(re.findall(r"url\(#([^)]+)\)", drawn)), set(re.findall(r'<clipPath id="([^"]+)"', drawn))
    assert used == named == {"figure4-clip-0", "figure4-clip-1"}


# --- the style map ---------------------------------------------------------------------------------------------------


def test_looks_stay_apart_without_colour() -> None:
    """In grey, markers tell optimizers apart; dashes tell regimes apart."""
    assert len({style.marker for style in OPTIMIZERS.values()}) == len(OPTIMIZERS)
    assert len({str(dash) for dash in REGIMES.values()}) == len(REGIMES)


def test_the_optimizers_of_the_paper_have_colours_of_their_own() -> None:
    paper = ("adamw", "adamw-sr", "adamw-kahan", "madam", "m-plus-adam")
    assert len({OPTIMIZERS[name].colour for name in paper}) == len(paper)


def test_unknown_names_get_looks_that_nobody_has() -> None:
    entries = ["mine", "adamw", *(f"m-plus-adam@tau{k}" for k in range(30))]
    styles = optimizer_styles(entries)
    assert list(styles) == ["adamw", "mine", *entries[2:]]
    assert styles["mine"].label == "mine"
    looks = {(style.colour, style.marker) for style in (*styles.values(), *OPTIMIZERS.values())}
    assert len(looks) == len(styles.keys() | OPTIMIZERS.keys())
    regimes = regime_styles(["fp8e4m3-bf16", "bf16-bf16", "nvfp4s-fp8"])
    assert list(regimes) == ["bf16-bf16", "fp8e4m3-bf16", "nvfp4s-fp8"]
    assert len({str(dash) for dash in regimes.values()}) == 3


def test_regimes_without_a_look_of_their_own_are_in_the_order_of_the_study() -> None:
    """Of a set they came in an order that differed from process to process, and with it the bytes of Figure 4."""
    regimes = [f"mine{number}" for number in range(12)]
    cells = [Cell(CellKey("tiny", 1, regime, "adamw"), {}, (), (), (), None) for regime in regimes]
    assert [regime for regime, _ in panel_of("tiny", cells).lines] == regimes
