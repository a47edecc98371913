"""The status of a study: of all its trainings, as data and as text, and printed until the study has ended.

The state of a run folder is one of these:

done       summary.json belongs to run.yaml
diverged   the same, but the run ended in a loss or gradient that is not finite
running    a living process holds the lock
failed     an attempt ended in a way that repeating cannot mend (failure.json)
stale      there is a lock, and its holder is dead: the next attempt takes it over
stopped    begun, and nobody is at it: the next attempt goes on from the newest checkpoint
waiting    not begun
unreadable a file of it may not or cannot be read, so that none of the above can be told
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpadam.durations import duration
from mpadam.plan.jobs import Training, further_trials, runs, trials
from mpadam.presence import is_there, why_unreadable
from mpadam.study.archive import open_study
from mpadam.study.config import StudyConfig
from mpadam.study.paths import StudyPaths
from mpadam.study.run_folder import RunFolder, last_lines, last_records, read_json, read_run
from mpadam.training.lock import is_held

STATES = ("done", "diverged", "running", "failed", "stale", "stopped", "waiting", "unreadable")
#: states that no further attempt changes
ENDED = ("done", "diverged", "failed")


@dataclass(frozen=True)
class State:
    """state: one of STATES. step: the last logged one; steps: of the run. loss: of that step, or of the validation.

    eta_seconds: to the end of a running training, by the speed of its last logged steps.
    note: one line that says more: an error, who holds the lock, where a run diverged.
    """

    state: str
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    eta_seconds: float | None = None
    note: str = ""


def read_state(path: Path) -> State:
    """The state of the run folder at `path`; files that are missing, torn or of another run count as absent."""
    try:
        return _read_state(RunFolder(path))
    except OSError as error:
        return State("unreadable", note=why_unreadable(error))


def _read_state(folder: RunFolder) -> State:
    lock = _read_lock(folder.lock)  # first: a run that ends meanwhile lets go of it after its summary is there
    run_hash, steps = read_run(folder.run_file)
    summary = _of_run(folder.summary, run_hash)
    if summary is not None:
        return _ended(summary, steps)
    records = last_records(folder.metrics)
    progress = _progress(records, steps)
    if lock is not None:
        return _locked(lock, progress, eta_seconds(records, steps))
    failure = _of_run(folder.failure, run_hash)
    if failure is not None:
        return State("failed", **progress, note=_one_line(failure.get("error")))
    if records or is_there(folder.checkpoints):
        return State("stopped", **progress, note=_one_line("".join(last_lines(folder.log)[-1:])))
    return State("waiting", steps=steps)


def _of_run(path: Path, run_hash: str | None) -> dict[str, Any] | None:
    content = read_json(path)
    return content if content is not None and run_hash is not None and content.get("hash") == run_hash else None


def _ended(summary: Mapping[str, Any], steps: int | None) -> State:
    if summary.get("status") != "diverged":
        return State("done", step=summary.get("steps"), steps=steps, loss=_finite(summary.get("val_loss")))
    diverged = summary.get("diverged") or {}
    note = f"step {diverged.get('step')}: {diverged.get('reason')}"
    return State("diverged", step=summary.get("steps"), steps=steps, loss=_finite(summary.get("train_loss")), note=note)


def _read_lock(path: Path) -> tuple[dict[str, Any], bool] | None:
    """Who holds the lock and whether that process lives; None where there is no lock."""
    try:
        holder, held = read_json(path) or {}, is_held(path)
    except (KeyError, TypeError, ValueError):
        holder, held = {}, False  # torn
    return (holder, held) if held or is_there(path) else None


def _locked(lock: tuple[Mapping[str, Any], bool], progress: Mapping[str, Any], eta: float | None) -> State:
    holder, held = lock
    note = f"process {holder['pid']} on {holder.get('host')}" if "pid" in holder else "an unknown process"
    note += f", Slurm job {holder['job']}" if holder.get("job") else ""
    if not held:
        return State("stale", **progress, note=f"{note} is gone")
    return State("running", **progress, eta_seconds=eta, note=note)


def _progress(records: Sequence[Mapping[str, Any]], steps: int | None) -> dict[str, Any]:
    last = records[-1] if records else {}
    step = last.get("step", 0 if steps else None)
    return {"step": step if isinstance(step, int) else None, "steps": steps, "loss": _finite(last.get("loss"))}


def _finite(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def eta_seconds(records: Sequence[Mapping[str, Any]], steps: int | None) -> float | None:
    """Seconds to the last step, by the speed between the records; None where it cannot be told.

    A record's `tokens_per_s` is that of the target tokens since the record before.
    """
    usable = [r for r in records if all(isinstance(r.get(key), int | float) for key in _SPEED)]
    if len(usable) == 1 and usable[0]["step"] == 1:
        usable.insert(0, dict.fromkeys(_SPEED, 0))
    steady = [(b, a) for b, a in pairwise(usable) if a["step"] > b["step"] and a["tokens_per_s"] > 0]
    done = sum(after["step"] - before["step"] for before, after in steady)
    taken = sum((after["target_tokens"] - before["target_tokens"]) / after["tokens_per_s"] for before, after in steady)
    return taken / done * max(0, steps - usable[-1]["step"]) if done and steps is not None else None


_SPEED = ("step", "target_tokens", "tokens_per_s")


def _one_line(text: object) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= 160 else line[:157] + "..."


# --- the study --------------------------------------------------------------------------------------------------------

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
        width = max((len(line.training.name) for line in lines), default=0)
        if lines:
            parts += [
                "",
                state,
                *(f"  {line.training.name:<{width}}  {_details(line.state)}".rstrip() for line in lines),
            ]
    return "\n".join(parts) + "\n"


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

    seconds: until it is printed again; None: once only. It ends by itself when every training has ended, and quietly on
        Ctrl-C.
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
    """On a terminal it takes the place of the one before."""
    if as_json:
        text = json.dumps(status.as_json(), indent=None if again else 2, allow_nan=False) + "\n"
    else:
        clear = CLEAR if again and sys.stdout.isatty() else ""
        text = clear + to_text(status) + (f"\n{time.strftime('%H:%M:%S')}\n" if again else "")
    sys.stdout.write(text)
    sys.stdout.flush()
