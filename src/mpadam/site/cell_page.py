"""The page of a cell: a section for each seed, and one for each trial that its rates were chosen from.

A section has result, loss curve, log and files, and what it alone has of FACETS; what the other seeds or trials have
alike is above them, once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Template

from mpadam.analysis.collect import Collected
from mpadam.analysis.tunings import Tuning
from mpadam.presence import is_there
from mpadam.site.pieces import link
from mpadam.site.records import first_and_last, flat, log_tail, specification, text_of
from mpadam.site.rows import PAGES, RunRow, Trial, trials
from mpadam.study.archive import ARCHIVE
from mpadam.study.grid import selection_key
from mpadam.study.run_folder import RunFolder, read_json

#: field of a summary, what it is called, how it is written
_RESULTS = (
    ("val_ppl", "validation perplexity", "{:.4f}"),
    ("val_loss", "validation loss, nats per token", "{:.6f}"),
    ("val_tokens", "validation tokens", "{:,}"),
    ("train_loss", "last training loss, nats per token", "{:.4f}"),
    ("steps", "steps", "{:,}"),
    ("positions", "positions", "{:,}"),
    ("target_tokens", "target tokens", "{:,}"),
    ("parameters", "parameters", "{:,}"),
    ("seconds", "seconds, all attempts", "{:,.1f}"),
    ("attempts", "attempts", "{:,}"),
    ("world_size", "processes", "{:,}"),
    ("tokens_per_s", "tokens per second", "{:,.0f}"),
    ("mfu", "share of the device's peak", "{:.1%}"),
    ("gpu_hours", "GPU-hours", "{:,.2f}"),
    ("peak_memory_bytes", "peak memory, bytes", "{:,}"),
    ("bytes_per_parameter", "bytes per parameter, weights and states", "{:.2f}"),
    ("hash", "identity", "{}"),
)
#: what decides a run, and where it was computed
FACETS = ("Hyper-parameters", "Specification", "Environment")
#: name and text
Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Section:
    """A run or a trial.

    place: its folder below the study's. curve: the picture as a data URI, empty where none was drawn.
    files: name, address relative to the page (empty for a file in the archive) and size in bytes.
    """

    row: RunRow | Trial
    place: str
    results: Lines
    curve: str
    curve_alt: str
    facets: Mapping[str, Lines]
    log: str
    files: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Group:
    """Sections of one kind, and what all of them that have any of a facet have alike."""

    anchor: str
    title: str
    noun: str
    sections: list[Section]
    shared: Mapping[str, Lines]


def render_cell(template: Template, collected: Collected, cell: list[RunRow]) -> str:
    output, archive = collected.paths.output, collected.paths.root / ARCHIVE
    here = (output / cell[0].page).parent
    tuning = next(t for t in collected.tunings if t.key == selection_key(collected.config, cell[0].key))
    tuned = f"Tuning trials of {tuning.key.model} {tuning.key.regime} {tuning.key.optimizer}"
    return template.render(
        study=collected.config.study,
        cell=cell[0],
        home=link(output / "index.html", here),
        style=link(output / PAGES / "style.css", here),
        archive=link(archive, here) if collected.paths.unpacked else "",
        groups=[
            _group("seeds", "Runs", "run", [_section(collected, row, tuning, here) for row in cell]),
            _group("trials", tuned, "trial", [_section(collected, t, tuning, here) for t in trials(collected, tuning)]),
        ],
    )


def _group(anchor: str, title: str, noun: str, sections: list[Section]) -> Group:
    shared = {facet: _shared([section.facets[facet] for section in sections]) for facet in FACETS}
    return Group(anchor, title, noun, sections, shared)


def _shared(found: Sequence[Lines]) -> Lines:
    known = [lines for lines in found if lines]
    return [line for line in known[0] if all(line in lines for lines in known)] if known else []


def _section(collected: Collected, row: RunRow | Trial, tuning: Tuning, here: Path) -> Section:
    folder = RunFolder(row.folder)
    summary = (read_json(folder.summary) or {}) if row.hash else {}
    if summary.get("hash") != row.hash:  # refused, or of another trial than the selection is of
        summary = {}
    spec = specification(folder, summary)
    values = _hyperparameters(spec, summary, tuning, tried=isinstance(row, Trial))
    return Section(
        row=row,
        place=row.folder.relative_to(collected.paths.records).as_posix(),
        results=_results(summary),
        curve=_data_uri(folder.plot) if is_there(folder.plot) else "",
        curve_alt=_curve_alt(folder, summary),
        facets=dict(
            zip(FACETS, (values, list(flat(spec)), list(flat(read_json(folder.environment) or {}))), strict=True)
        ),
        log=log_tail(folder),
        files=_files(folder, here, archived=collected.paths.unpacked is not None),
    )


def _results(summary: Mapping[str, Any]) -> Lines:
    found = ((label, form, summary.get(name)) for name, label, form in _RESULTS)
    return [(label, form.format(value)) for label, form, value in found if value is not None]


def _data_uri(picture: Path) -> str:
    """An SVG in the page itself, so that it is there when the run's folder is not; a picture runs no script."""
    return "data:image/svg+xml," + quote(picture.read_text(encoding="utf-8", errors="replace"), safe="/,:=")


def _curve_alt(folder: RunFolder, summary: Mapping[str, Any]) -> str:
    points = [f"{loss:.3f} at step {step:,}" for step, loss in dict.fromkeys(first_and_last(folder))]
    train = f"training loss from {' to '.join(points)}" if points else "no training loss yet"
    value = summary.get("val_loss")
    validation = f"; validation loss {value:.3f} at the end" if isinstance(value, float) else ""
    return f"Loss in nats per token against steps: {train}{validation}."


def _hyperparameters(spec: Mapping[str, Any], summary: Mapping[str, Any], tuning: Tuning, *, tried: bool) -> Lines:
    """Values, and where they come from. tried: they are a trial's."""
    values = summary.get("hyperparameters") or (spec.get("optimizer") or {}).get("values") or {}
    return [(name, f"{text_of(value)}, {_origin(name, tuning, tried=tried)}") for name, value in values.items()]


def _origin(name: str, tuning: Tuning, *, tried: bool) -> str:
    if name in tuning.selected:
        edge = "" if tuning.bracketed.get(name, True) else ", without worse neighbours on both sides"
        return "tried" if tried else f"chosen by tuning{edge}"
    return "given by the study" if name in tuning.fixed else "default"


def _files(folder: RunFolder, here: Path, *, archived: bool) -> list[tuple[str, str, str]]:
    named = (
        *(folder.summary, folder.run_file, folder.metrics, folder.probes, folder.log, folder.environment),
        *(folder.plot, folder.weights, folder.failure),
    )
    found = [path for path in named if is_there(path)]
    return [(path.name, "" if archived else link(path, here), f"{path.stat().st_size:,}") for path in found]
