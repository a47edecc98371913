"""How far a run of the workflow is: what is done, what runs now, and about how much time is left.

Times are seconds since the epoch, as log records carry them. Nothing here writes anything.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from mpadam.durations import duration


@dataclass(frozen=True)
class Job:
    rule: str
    outputs: Sequence[str]
    logs: Sequence[str] = ()

    @property
    def summaries(self) -> list[str]:
        """What it writes one after another if it trains: one summary per run or trial."""
        return [path for path in self.outputs if Path(path).name == "summary.json"]

    def name(self) -> str:
        """`train 200k 1x bf16-bf16 adamw seed0`; the rule alone where it does not train exactly one run."""
        return f"{self.rule} {_run(self.summaries[0])}" if len(self.summaries) == 1 else self.rule

    def doing(self) -> str:
        """The run or trial that it trains now, `200k 1x bf16-bf16 adamw seed0 (3 of 8)`; else its rule."""
        if not self.summaries:
            return self.rule
        runs = len(self.summaries)
        now = next((k for k, path in enumerate(self.summaries) if not Path(path).exists()), runs - 1)
        return _run(self.summaries[now]) + (f" ({now + 1} of {runs})" if runs > 1 else "")


@dataclass(frozen=True)
class Planned:
    """A job that has to run. seconds: what the plan expects of its training, 0 if it does not train."""

    rule: str
    seconds: float


@dataclass
class Progress:
    """total, done: jobs, as Snakemake counts them. planned: jobs that are not finished, by Snakemake's number.

    running: with the time of their start. finished: with the seconds they took.
    """

    total: int = 0
    done: int = 0
    began: float | None = None
    planned: dict[int, Planned] = field(default_factory=dict)
    running: dict[int, tuple[Job, float]] = field(default_factory=dict)
    finished: list[tuple[Planned, float]] = field(default_factory=list)

    def start(self, number: int, job: Job, now: float) -> None:
        self.began = self.began or now
        self.running[number] = job, now

    def finish(self, number: int, now: float) -> None:
        (_, started), plan = self.running.pop(number), self.planned.pop(number, None)
        if plan:
            self.finished.append((plan, now - started))

    def line(self, now: float) -> str:
        """`[1:23] 12/94 jobs done, about 4 min left; now: 200k 1x bf16-bf16 adamw seed0 (3 of 8), spec`."""
        if not self.total:
            return "Finding out which jobs have to run ..."
        left = self.seconds_left(now)
        parts = [f"[{elapsed(now - (self.began or now))}] {self.done}/{self.total} jobs done"]
        parts += [f", {about(left)} left"] if left is not None else []
        doing = dict.fromkeys(job.doing() for job, _ in self.running.values())
        return "".join([*parts, "; now: " if doing else "", ", ".join(doing)])

    def seconds_left(self, now: float) -> float | None:
        """From what finished jobs took, and as many at a time as until now; None where nothing tells."""
        ran = {number: now - started for number, (_, started) in self.running.items()}
        busy = sum(took for _, took in self.finished) + sum(ran.values())
        takes = self._takes()
        whole = {number: takes(plan) for number, plan in self.planned.items()}
        if self.began is None or not whole or not busy or None in whole.values():
            return None
        remaining = sum(max(0.0, (seconds or 0.0) - ran.get(number, 0.0)) for number, seconds in whole.items())
        return remaining * (now - self.began) / busy

    def _takes(self) -> Callable[[Planned], float | None]:
        """Seconds of a whole job: a training's in proportion to what the plan expects, another's like its rule's."""
        expected = sum(plan.seconds for plan, _ in self.finished)
        trained = sum(took for plan, took in self.finished if plan.seconds)
        others: dict[str, list[float]] = {}
        for plan, took in self.finished:
            if not plan.seconds:
                others.setdefault(plan.rule, []).append(took)
        means = {rule: fmean(took) for rule, took in others.items()}
        usual = fmean(means.values()) if means else None

        def takes(plan: Planned) -> float | None:
            if plan.seconds:
                return plan.seconds * trained / expected if expected else None
            return means.get(plan.rule, usual)

        return takes


def _run(summary: str) -> str:
    """`200k 1x bf16-bf16 adamw seed0` of the path of its summary."""
    return re.split("/(?:runs|tuning)/", str(Path(summary).parent))[-1].replace("/", " ")


def elapsed(seconds: float) -> str:
    """`1:23`, `2:01:23`."""
    return duration(int(seconds))


def about(seconds: float) -> str:
    """In words, with no more precision than such an estimate has."""
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    if minutes < 10:
        return f"about {math.ceil(minutes)} min"
    return f"about {5 * round(minutes / 5)} min" if minutes < 90 else f"about {round(minutes / 60)} h"
