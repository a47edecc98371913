"""Host synchronisations within a training step: how often the host waits for the GPU, and in which line."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu.parts import Case, NotHereError, Row, Setting, apart
from gpu.runs import KINDS, forget, need_for, write_run
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import read_run_file
from mpadam.training.loop import backward, set_rates, update
from mpadam.training.machine import configure
from mpadam.training.session import open_data, open_session

WARM_UP, COUNTED = 3, 3
_STEPS = 100
"""Of the run, of which the first ones are taken: none that is counted is logged."""


def cases(setting: Setting) -> Iterator[Case]:
    """Each kind of training."""
    for name, changes in [*KINDS.items(), ("Liger", {"liger": True})]:
        yield Case(name, partial(count, setting, name, changes))


def count(setting: Setting, name: str, changes: Mapping[str, Any]) -> list[Row]:
    """Synchronisations of a step that is not logged."""
    if setting.device == "cpu":
        raise NotHereError("a CPU has nothing to wait for, and this check runs on one")
    folder = write_run(setting, f"{name}, waits", steps=_STEPS, log_every=_STEPS, **changes)
    places = apart(count_here, folder)
    forget(folder)
    each = sum(places.values()) / COUNTED
    where = ", ".join(f"{place} ({number / COUNTED:g})" for place, number in places.most_common())
    return [Row(name, {"a step": each, "where": where}, "the host waits for the GPU" if each else "")]


def count_here(folder: Path) -> Counter[str]:
    """File and line of each synchronisation of some steps."""
    need_for(folder)
    run = read_run_file(folder / "run.yaml")
    configure(run.spec)
    session = open_session(run, RunFolder(folder), open_data(run, RunFolder(folder)))
    places: Counter[str] = Counter()
    for step in range(1, 1 + WARM_UP + COUNTED):
        with synchronisations(places if step > WARM_UP else Counter()):
            set_rates(session, step)
            update(session, backward(session, step))
    return places


@contextmanager
def synchronisations(places: Counter[str]) -> Iterator[None]:
    """Count those of torch's own operations inside, by file and line of the Python code that asked for them."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
    places.update(f"{Path(w.filename).name}:{w.lineno}" for w in found if "synchronizing CUDA" in str(w.message))
