"""Issue 21 A: loss curves that are short, whatever the length of a file and whatever became of its last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpadam.site.curves import HEIGHT, LEVELS, POINTS, WINDOW, loss_panels, training_losses
from mpadam.site.rows import RunRow
from mpadam.site.write import environment
from mpadam.study.grid import RunKey


def metrics(path: Path, losses: list[float]) -> Path:
    """Losses of steps 1, 2, ..."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"step": step, "loss": loss, "lr": 1e-3}) for step, loss in enumerate(losses, start=1))
    path.write_text("".join(line + "\n" for line in lines))
    return path


def row(
    folder: Path, optimizer: str = "adamw", seed: int = 0, regime: str = "bf16-bf16", status: str = "completed"
) -> RunRow:
    key = RunKey("tiny", 1, regime, optimizer, seed)
    about = dict.fromkeys(("perplexity", "loss", "steps", "seconds", "note"), "")
    page = f"pages/tiny/1x/{regime}/{optimizer}.html"
    return RunRow(key=key, cell="", folder=folder, page=page, optimizer=optimizer, status=status, hash="h", **about)


def test_a_short_file_has_a_point_for_every_line(tmp_path: Path) -> None:
    losses = [6.0, 5.5, 5.25]
    assert training_losses(metrics(tmp_path / "metrics.jsonl", losses)) == list(enumerate(losses, start=1))


def test_a_long_file_has_few_points_each_the_mean_of_what_is_around_it(tmp_path: Path) -> None:
    path = metrics(tmp_path / "metrics.jsonl", [6.0 - step / 10_000 for step in range(1, 10_001)])
    assert path.stat().st_size > 2 * POINTS * WINDOW
    found = training_losses(path)
    steps = [step for step, _ in found]
    assert len(found) == POINTS
    assert steps == sorted(set(steps))
    assert steps[0] < 100
    assert steps[-1] > 9_700
    assert all(loss == pytest.approx(6.0 - step / 10_000, abs=1e-3) for step, loss in found)


def test_what_is_missing_torn_or_not_finite_is_passed_over(tmp_path: Path) -> None:
    path = metrics(tmp_path / "metrics.jsonl", [6.0, float("nan"), 5.0, 4.0])
    path.write_text(path.read_text()[:-20])
    assert training_losses(path) == [(1, 6.0), (3, 5.0)]
    assert training_losses(tmp_path / "no such file") == []


def test_panels_have_their_regimes_and_a_key_with_levels_as_one_entry(tmp_path: Path) -> None:
    rows = []
    for number, (optimizer, regime) in enumerate(
        (
            ("adamw@betas0", "bf16-bf16"),
            ("m-plus-adam", "bf16-bf16"),
            ("adamw@lr0", "bf16-bf16"),
            ("adamw", "fp32-bf16"),
        )
    ):
        metrics(tmp_path / str(number) / "metrics.jsonl", [6.0, 5.0, 4.0 + number / 10])
        rows.append(row(tmp_path / str(number), optimizer, regime=regime))
    rows.append(row(tmp_path / "not begun", "additive-twin", status="missing"))
    reference, coarse = loss_panels(rows)
    assert (reference.name, coarse.name) == ("fp32-bf16", "bf16-bf16")
    assert [(lines.label, len(lines.curves)) for lines in coarse.lines] == [("M+Adam", 1), (LEVELS, 2)]
    assert (reference.low, reference.high, reference.steps) == (coarse.low, coarse.high, coarse.steps)
    assert coarse.low <= 4.0
    assert coarse.high >= 5.0


def test_validations_are_dots_within_the_scale_and_those_of_another_run_are_not(tmp_path: Path) -> None:
    entries = [{"step": 2, "loss": 2.0}, {"step": 3, "loss": None}, {"step": 3, "loss": 1.0}]
    for name in ("h", "other"):
        metrics(tmp_path / name / "metrics.jsonl", [6.0, 5.0, 4.0])
        (tmp_path / name / "summary.json").write_text(json.dumps({"hash": name, "validation": entries}))
    [panel] = loss_panels([row(tmp_path / "h"), row(tmp_path / "other", seed=1)])
    marks = [marks for _, _, marks in panel.lines[0].curves]
    assert panel.low <= 1.0
    y = [round(HEIGHT * (panel.high - loss) / (panel.high - panel.low)) for loss in (2.0, 1.0)]
    assert marks == [f"M667 {y[0]}h0m333 {y[1] - y[0]}", ""]


def test_the_page_of_300_runs_stays_small(tmp_path: Path) -> None:
    rows = []
    for number in range(300):
        metrics(tmp_path / str(number) / "metrics.jsonl", [7.0 - (step * 37 % 200) / 100 for step in range(400)])
        rows.append(row(tmp_path / str(number), "m-plus-adam-unnormalized", number, f"regime-{number % 10}"))
    html = environment().get_template("curves.html").render(curves=loss_panels(rows))
    assert html.count("<a href=") == 300
    assert len(html) < 300_000
