"""Weights & Biases in addition to the run folder: off by default, imported only when it is on.

It shows what metrics.jsonl holds and is the source of nothing: tables read the run folder alone. The run's id is its
hash, so that every attempt goes on in the same W&B run; steps that are done again after a resume have the values that
are already there, and W&B passes over them. `offline` writes below the run folder (`wandb sync D/wandb/offline-run-*`
sends it later) and needs neither network nor key. Nothing that W&B fails at ends a training, and it asks nothing: while
it starts, standard input is empty.
"""

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import RunFile

log = logging.getLogger(__name__)

SECONDS_TO_CONNECT = 30.0
SECONDS_TO_FINISH = 60.0


class Tracker:
    """One W&B run. After its first failure it is silent for the rest of the attempt."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def step(self, record: dict[str, Any]) -> None:
        self._send("log", {key: value for key, value in record.items() if key != "step"}, step=record["step"])

    def validation(self, entry: dict[str, Any]) -> None:
        values = {f"validation/{key}": value for key, value in entry.items() if key != "step"}
        self._send("log", values, step=entry["step"])

    def close(self) -> None:
        self._send("finish")

    def _send(self, method: str, *arguments: Any, **options: Any) -> None:
        if self._run is None:
            return
        try:
            getattr(self._run, method)(*arguments, **options)
        except Exception as error:
            _give_up(error)
            self._run = None


def open_tracker(run: RunFile, folder: RunFolder) -> Tracker | None:
    """The tracker of a run; None where `wandb.mode` is disabled, or W&B cannot start."""
    if run.wandb["mode"] == "disabled":
        return None
    try:
        with _nothing_to_read():
            import wandb

            return Tracker(wandb.init(**_arguments(run, folder, wandb.Settings)))
    except (Exception, KeyboardInterrupt) as error:  # W&B takes the end of its input for Ctrl-C
        _give_up(error)
        return None


@contextmanager
def _nothing_to_read() -> Iterator[None]:
    """Standard input is empty and no terminal: without a key W&B would ask for one, and wait."""
    before = sys.stdin
    with Path(os.devnull).open(encoding="utf-8") as empty:
        sys.stdin = empty
        try:
            yield
        finally:
            sys.stdin = before


def check_tracking(run: RunFile) -> None:
    """Raise ValueError where W&B is on and not installed."""
    if run.wandb["mode"] != "disabled" and importlib.util.find_spec("wandb") is None:
        raise ValueError(
            f"wandb.mode = {run.wandb['mode']!r}, but wandb is not installed; install it with  pip install wandb  or "
            "write  mode: disabled"
        )


def _arguments(run: RunFile, folder: RunFolder, settings: Callable[..., Any]) -> dict[str, Any]:
    """What W&B is told: labels and specification. Of machine, code and repository it gets nothing to send."""
    labels = run.labels
    return {
        "mode": run.wandb["mode"],
        "project": run.wandb["project"],
        "entity": run.wandb["entity"],
        "id": run.spec.hash,
        "name": labels.title,
        "group": labels.study,
        "resume": "allow",
        "dir": str(folder.path),
        "config": {"labels": labels.model_dump(mode="json"), **run.spec.model_dump(mode="json")},
        "settings": settings(
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
            init_timeout=SECONDS_TO_CONNECT,
            finish_timeout=SECONDS_TO_FINISH,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        ),
    }


def _give_up(error: BaseException) -> None:
    why = " ".join(f"{type(error).__name__}: {error}".split())
    log.warning("W&B is off for the rest of this attempt (%s); metrics.jsonl has everything", why)
