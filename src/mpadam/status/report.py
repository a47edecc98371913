"""The status of a study: of all its trainings, as data and as text, and printed until the study has ended."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpadam.durations import duration
from mpadam.plan.jobs import Training, further_trials, runs, trials
from mpadam.status.state import ENDED, STATES, State, read_state
from mpadam.study.archive import open_study
from mpadam.study.config import StudyConfig
from mpadam.study.paths import StudyPaths

#: states whose trainings are listed one by one, in this order; the others are only counted
LISTED = ("running", "stale", "failed", "diverged", "stopped", "unreadable")


@dataclass(frozen=True)
class Line:
    """A training and its state. folder: relative to the study's folder."""

    training: Training
    folder: str
    state: State


@dataclass(frozen=True)
class Status:
    study: str
    lines: tuple[Line, ...]

    @property
    def ended(self) -> bool:
        """Whether nothing is left that could change by itself."""
        return all(line.state.state in ENDED for line in self.lines)

    def counts(self, *, trials: bool) -> dict[str, int]:
        found = Counter(line.state.state for line in self.lines if (line.training.trial is not None) == trials)
        return {state: found[state] for state in STATES if found[state]}

    def as_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "runs": self.counts(trials=False),
            "trials": self.counts(trials=True),
            "lines": [
                {"name": line.training.name, "folder": line.folder, "trial": line.training.trial, **asdict(line.state)}
                for line in self.lines
            ],
        }


def read_status(config: StudyConfig, results: Path = Path("results")) -> Status:
    paths = open_study(StudyPaths(config.study, results))
    lines = []
    for training in (*trials(config), *further_trials(config, paths), *runs(config)):
        folder = training.folder(paths)
        lines.append(Line(training, folder.relative_to(paths.records).as_posix(), read_state(folder)))
    return Status(config.study, tuple(lines))


def to_text(status: Status) -> str:
    parts = [f"Study {status.study}"]
    for noun, is_trial in (("tuning trials", True), ("runs", False)):
        counts = status.counts(trials=is_trial)
        if counts:
            parts.append(
                f"  {sum(counts.values())} {noun}: " + ", ".join(f"{n} {state}" for state, n in counts.items())
            )
    for state in LISTED:
        lines = [line for line in status.lines if line.state.state == state]
        if lines:
            parts += ["", state, *_table(lines)]
    return "\n".join(parts) + "\n"


def _table(lines: Sequence[Line]) -> Iterator[str]:
    width = max(len(line.training.name) for line in lines)
    for line in lines:
        yield f"  {line.training.name:<{width}}  {_details(line.state)}".rstrip()


def _details(state: State) -> str:
    parts = []
    if state.step is not None and state.steps:
        parts.append(f"step {state.step:,}/{state.steps:,} {state.step / state.steps:4.0%}")
    if state.loss is not None:
        parts.append(f"loss {state.loss:.4f}")
    if state.eta_seconds is not None:
        parts.append(f"ETA {duration(state.eta_seconds)}")
    return " | ".join([*parts, *([state.note] if state.note else [])])


# --- printing --------------------------------------------------------------------------------------------------------


CLEAR = "\033[H\033[2J"


def watch(
    config: StudyConfig,
    results: Path,
    *,
    seconds: float | None,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the status to standard output.

    seconds: between two looks; None: look once. It ends by itself when every training has ended, and quietly on Ctrl-C.
    """
    again = seconds is not None
    with suppress(KeyboardInterrupt):
        while True:
            status = read_status(config, results)
            _print(status, as_json=as_json, again=again)
            if seconds is None or status.ended:
                return
            sleep(seconds)


def _print(status: Status, *, as_json: bool, again: bool) -> None:
    """On a terminal a new look takes the place of the one before."""
    if as_json:
        text = json.dumps(status.as_json(), indent=None if again else 2, allow_nan=False) + "\n"
    else:
        clear = CLEAR if again and sys.stdout.isatty() else ""
        text = clear + to_text(status) + (f"\n{time.strftime('%H:%M:%S')}\n" if again else "")
    sys.stdout.write(text)
    sys.stdout.flush()
