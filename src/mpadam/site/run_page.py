"""The page of one run: its result, loss curve, hyper-parameters and where they come from, environment, log, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template

from mpadam.analysis.collect import Collected
from mpadam.analysis.tunings import Tuning
from mpadam.presence import is_there
from mpadam.site.pieces import link
from mpadam.site.records import environment, first_and_last, flat, log_tail, specification, text_of
from mpadam.site.rows import PAGES, RunRow
from mpadam.site.trials import Trial, trials
from mpadam.study.grid import selection_key
from mpadam.study.run_folder import RunFolder, read_json

#: field of a summary, what it is called, how it is written
_RESULTS = (
    ("val_ppl", "validation perplexity", "{:.4f}"),
    ("val_loss", "validation loss, nats a token", "{:.6f}"),
    ("val_tokens", "validation tokens", "{:,}"),
    ("train_loss", "last training loss, nats a token", "{:.4f}"),
    ("steps", "steps", "{:,}"),
    ("positions", "positions", "{:,}"),
    ("target_tokens", "target tokens", "{:,}"),
    ("parameters", "parameters", "{:,}"),
    ("seconds", "seconds, all attempts", "{:,.1f}"),
    ("attempts", "attempts", "{:,}"),
    ("world_size", "processes", "{:,}"),
    ("tokens_per_s", "tokens a second", "{:,.0f}"),
    ("mfu", "share of the device's peak", "{:.1%}"),
    ("gpu_hours", "GPU-hours", "{:,.2f}"),
    ("peak_memory_bytes", "peak memory, bytes", "{:,}"),
    ("bytes_per_parameter", "bytes a parameter, weights and states", "{:.2f}"),
    ("hash", "identity", "{}"),
)


@dataclass(frozen=True)
class File:
    name: str
    href: str
    size: str


@dataclass(frozen=True)
class RunPage:
    """What the template shows; every link is relative to the page."""

    row: RunRow
    home: str
    style: str
    results: list[tuple[str, str]]
    curve: str | None
    curve_alt: str
    siblings: list[tuple[RunRow, str]]
    hyperparameters: list[tuple[str, str, str]]
    trials: tuple[Trial, ...]
    tuning: str
    spec: list[tuple[str, str]]
    environment: list[tuple[str, str]]
    log: str
    files: list[File]


def render_run(template: Template, collected: Collected, row: RunRow, cell: list[RunRow]) -> str:
    """The page of a run as HTML; cell: all seeds of its cell."""
    return template.render(study=collected.config.study, page=run_page(collected, row, cell))


def run_page(collected: Collected, row: RunRow, cell: list[RunRow]) -> RunPage:
    """Gather it."""
    output = collected.paths.output
    here = (output / row.page).parent
    folder = RunFolder(row.folder)
    summary = (read_json(folder.summary) or {}) if row.status in ("completed", "diverged") else {}
    spec = specification(folder, summary)
    tuning = next(t for t in collected.tunings if t.key == selection_key(collected.config, row.key))
    return RunPage(
        row=row,
        home=f"{link(output / 'index.html', here)}",
        style=link(output / PAGES / "style.css", here),
        results=_results(summary),
        curve=link(folder.plot, here) if is_there(folder.plot) else None,
        curve_alt=_curve_alt(folder, summary),
        siblings=[(other, link(output / other.page, here)) for other in cell if other != row],
        hyperparameters=_hyperparameters(spec, summary, tuning),
        trials=trials(collected, tuning, here),
        tuning=f"{tuning.key.model} {tuning.key.regime} {tuning.key.optimizer}",
        spec=list(flat(spec)),
        environment=environment(folder),
        log=log_tail(folder),
        files=_files(folder, here),
    )


def _results(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = ((label, form, summary.get(name)) for name, label, form in _RESULTS)
    return [(label, form.format(value)) for label, form, value in found if value is not None]


def _curve_alt(folder: RunFolder, summary: Mapping[str, Any]) -> str:
    """The curve in a sentence."""
    points = [f"{loss:.3f} at step {step:,}" for step, loss in dict.fromkeys(first_and_last(folder))]
    train = f"training loss from {' to '.join(points)}" if points else "no training loss yet"
    value = summary.get("val_loss")
    validation = f"; validation loss {value:.3f} at the end" if isinstance(value, float) else ""
    return f"Loss in nats a token against steps: {train}{validation}."


def _hyperparameters(spec: Mapping[str, Any], summary: Mapping[str, Any], tuning: Tuning) -> list[tuple[str, str, str]]:
    """(name, value, where it comes from)."""
    values = summary.get("hyperparameters") or (spec.get("optimizer") or {}).get("values") or {}
    return [(name, text_of(value), _origin(name, tuning)) for name, value in values.items()]


def _origin(name: str, tuning: Tuning) -> str:
    if name in tuning.selected:
        edge = "" if tuning.bracketed.get(name, True) else ", without worse neighbours on both sides"
        return f"chosen by tuning{edge}"
    return "given by the study" if name in tuning.fixed else "default"


def _files(folder: RunFolder, here: Path) -> list[File]:
    """Links to what is there."""
    named = (
        *(folder.summary, folder.run_file, folder.metrics, folder.log, folder.environment),
        *(folder.plot, folder.weights, folder.failure),
    )
    return [File(path.name, link(path, here), f"{path.stat().st_size:,}") for path in named if is_there(path)]
