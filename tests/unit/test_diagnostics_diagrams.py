"""Figures 2 and 7 to 9: what a step used against the captions of the paper, flips that must show, and legibility."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch
from matplotlib.transforms import Bbox

from mpadam.cli import main
from mpadam.diagnostics.dataflow import format_of, partial_sums, trace_step
from mpadam.exhibits import figure2
from mpadam.exhibits.dataflow import dataflow_picture
from mpadam.exhibits.kit.diagram import box, canvas, note
from mpadam.exhibits.kit.pictures import WIDTH, drawing, write_picture
from mpadam.exhibits.source import Source
from mpadam.model.fp8.scaling import OPERAND_FORMATS
from mpadam.study.diagnostics import Dataflow

OPTIONS = Dataflow()
FP8 = {"masters": "fp8", "compute": "fp8"}
FP16_SCALES = {**FP8, "power_of_two_scale": False}
#: what the captions of Figures 7, 8 and 9 say is multiplied, and what is stored
CAPTIONS = {
    "figure7": ({"X": "bf16", "W": "bf16", "dY": "bf16"}, "bf16", {"codes": "bf16"}),
    "figure8": ({"X": "e4m3", "W": "e4m3", "dY": "e5m2"}, "bf16", {"codes": "bf16"}),
    "figure9": ({"X": "e4m3", "W": "e4m3", "dY": "e5m2"}, "fp8_e5m2", {"codes": "uint8", "scales": "uint8"}),
}


@pytest.fixture(autouse=True)
def _theme() -> Iterator[None]:
    """That of what writes pictures."""
    with drawing():
        yield


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def drawn(options: Dataflow, regime: dict[str, str]) -> list[str]:
    return texts(dataflow_picture("figure9", "regime", asdict(trace_step(options, regime))).figure)


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_step_uses_what_the_caption_of_the_paper_says(name):
    operands, stored_format, stored = CAPTIONS[name]
    trace = trace_step(OPTIONS, OPTIONS.figures[name])
    assert {seen.dtype for seen in trace.tensors.values()} == {"bf16"}
    assert set(trace.products) == {"forward", "input gradient", "weight gradient"}
    for product in trace.products.values():
        assert product.result == "bf16"
        for operand, seen in (product.left, product.right):
            assert seen.values == operands[operand]
    assert trace.sums == "fp32"
    assert trace.states == {"m": "bf16", "v": "bf16", "v_e": "bf16"}
    assert trace.gradient.dtype == "bf16"
    assert trace.arithmetic == "fp32"
    assert (trace.store["format"], trace.stored) == (stored_format, stored)
    assert trace.others == {"embedding": "bf16", "head": "bf16", "norm": "bf16"}


@pytest.mark.parametrize(
    ("options", "regime", "word"),
    [
        (replace(OPTIONS, gradient_dtype="fp32"), FP8, "gradient\nbf16, held in fp32"),
        (replace(OPTIONS, gradient_dtype="fp32", micro_batches=2), FP8, "gradient\nfp32"),
        (replace(OPTIONS, state_dtype="fp32"), FP8, "m, v, v_e\nfp32"),
        (replace(OPTIONS, optimizer="adamw-kahan"), FP8, "write back:\nkahan"),
        (OPTIONS, {**FP8, "masters": "fp8e4m3"}, "stored weight: fp8_e4m3\ncodes uint8, scales uint8"),
        (OPTIONS, FP16_SCALES, "stored weight: fp8_e5m2-fp16scale\ncodes uint8, scales fp16"),
        (OPTIONS, {**FP8, "masters": "bf16"}, "stored weight: bf16"),
        (OPTIONS, {**FP8, "masters": "fp32"}, "stored weight: fp32"),
        (OPTIONS, {**FP8, "shadow": "persistent"}, "write back:\nnearest\npersistent shadow"),
        (OPTIONS, {**FP8, "compute": "bf16"}, "W\nbf16"),
    ],
)
def test_a_flipped_dtype_shows_in_the_figure(options, regime, word):
    before, after = drawn(OPTIONS, FP8), drawn(options, regime)
    assert word in after
    assert word not in before


def test_the_figure_shows_what_happens_and_not_what_is_configured(monkeypatch):
    """The same configuration, but layers that cast their input to another format than the recipe says."""
    monkeypatch.setitem(OPERAND_FORMATS, "input", "e5m2")
    trace = trace_step(OPTIONS, FP8)
    assert dict([trace.products["forward"].left])["X"].values == "e5m2"


def test_regimes_that_a_study_could_not_have_are_refused():
    with pytest.raises(ValueError, match="masters"):
        trace_step(OPTIONS, {"masters": "fp9", "compute": "bf16"})


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e5m2", ml_dtypes.float8_e5m2),
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("bf16", ml_dtypes.bfloat16),
        ("fp32", np.float32),
    ],
)
def test_formats_are_told_from_values(name, dtype):
    values = np.random.default_rng(0).normal(size=500).astype(dtype).astype(np.float32)
    assert format_of(torch.from_numpy(values)) == name


def test_partial_sums_in_sixteen_bits_are_noticed():
    def in_bf16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)
        for k in range(a.shape[1]):
            total = total + torch.outer(a[:, k], b[k])
        return total

    like = torch.zeros(1, dtype=torch.bfloat16)
    assert partial_sums(in_bf16, like) == "less than fp32"
    assert partial_sums(lambda a, b: (a.double() @ b.double()).to(a.dtype), like) == "fp32"


# --- legibility ------------------------------------------------------------------------------------------------------


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that lie on one another, and texts that leave the page or the box they are written in."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    page = figure.bbox
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for axes in figure.axes for t in axes.texts if t.get_text()]
    found = [(a, b) for (a, box_a), (b, box_b) in combinations(boxes, 2) if box_a.padded(-1).overlaps(box_b.padded(-1))]
    outside = [(a, "page") for a, box in boxes if not (page.x0 <= box.x0 and box.x1 <= page.x1)]
    frames = [p.get_window_extent(renderer) for axes in figure.axes for p in axes.patches if is_box(p)]
    for name, text in boxes:
        for frame in frames:
            if frame.contains((text.x0 + text.x1) / 2, (text.y0 + text.y1) / 2) and not holds(frame, text):
                outside.append((name, "box"))
    return found + outside


def is_box(patch: Patch) -> bool:
    return isinstance(patch, FancyBboxPatch)


def holds(frame: Bbox, text: Bbox) -> bool:
    return frame.x0 <= text.x0 and text.x1 <= frame.x1 and frame.y0 <= text.y0 and text.y1 <= frame.y1


def test_overlaps_are_noticed():
    figure, axes = canvas(WIDTH, 2)
    box(axes, (1, 1), "in its box", width=1.0)
    note(axes, (3, 1), "one")
    assert overlaps(figure) == []
    note(axes, (3.05, 1.05), "another")
    axes.text(1, 1.2, "far too long for it", ha="center")
    assert {why for _, why in overlaps(figure)} == {"another", "box"}


@pytest.mark.parametrize("regime", [*OPTIONS.figures.values(), {"masters": "nvfp4", "compute": "fp8"}, FP16_SCALES])
def test_no_text_of_a_dataflow_lies_on_another(regime):
    trace = trace_step(replace(OPTIONS, optimizer="m-plus-adam-kahan"), regime)
    assert overlaps(dataflow_picture("figure9", "regime", asdict(trace)).figure) == []


def test_figure_2_is_legible_and_tells_what_the_grid_does():
    figure = figure2.make(Source(Path())).figure
    assert overlaps(figure) == []
    words = [text for text in texts(figure) if text in ("moves", "is lost", "no step")]
    # additive; in proportion to |w|; default form: at zero, at a small and at a large weight
    assert words == ["moves", "moves", "is lost", "no step", "moves", "moves", "no step", "moves", "is lost"]


def test_the_same_code_gives_the_same_bytes(tmp_path):
    first, second = (write_picture(figure2.make(Source(Path())), tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_command_writes_figures_and_traces(tmp_path, capsys):
    assert main(["diagnose", "overview", "--out", str(tmp_path)]) == 0
    only = json.dumps({"figures": {"figure8": {"masters": "bf16", "compute": "fp8"}}})
    assert main(["diagnose", "dataflow", "--options", only, "--out", str(tmp_path)]) == 0
    assert {path.name for path in (tmp_path / "figures").glob("*.svg")} == {"figure2.svg", "figure8.svg"}
    trace = json.loads((tmp_path / "diagnostics" / "dataflow" / "figure8.json").read_text())
    assert trace["regime"] == {"masters": "bf16", "compute": "fp8"}
    words = json.loads((tmp_path / "figures" / "figure8.json").read_text())
    assert "bf16-fp8" in words["title"]
    assert "Figures 7 to 9" in capsys.readouterr().out
