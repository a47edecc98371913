"""Which rate a method is shown at: chosen on the tuning seeds, shown on the others.

A single branch is shown at its best rate for each task, the others at one rate for all tasks, as in the paper. Every
method is chosen in both ways, so that a table can put like beside like.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mpadam.diagnostics.matrix_fitting.fit import SINGLE, Sweep

How = Literal["best per task", "one for all tasks"]
HOW: tuple[How, ...] = ("best per task", "one for all tasks")


@dataclass(frozen=True)
class Choice:
    """points: index of the chosen rates of each task.  open_ends: for each task the rates whose chosen value is the
    least or greatest that was tried, so that a better one may lie beyond."""

    sweep: Sweep
    how: How
    points: list[int]
    open_ends: list[list[str]]

    @property
    def as_in_paper(self) -> bool:
        return (self.how == "best per task") == (self.sweep.method in SINGLE)

    def rates(self, task: int) -> dict[str, float]:
        return self.sweep.rates[self.points[task]]

    def final(self, task: int, seeds: int) -> Tensor:
        """Final errors on the first `seeds` seeds, those reported on."""
        return self.sweep.final[self.points[task], task, :seeds]

    def curve(self, task: int, seeds: int) -> Tensor:
        """(updates + 1, seeds)."""
        return self.sweep.errors[:, self.points[task], task, :seeds]


def choose(sweep: Sweep, how: How, *, seeds: int) -> Choice:
    """Least mean of log(final error) over the seeds after the first `seeds`; a rate with an error that is not finite
    there is not chosen while another is."""
    score = sweep.final[:, :, seeds:].log().mean(-1)
    score = torch.where(score.isfinite(), score, torch.inf)
    if how == "one for all tasks":
        score = score.mean(1, keepdim=True).expand_as(score)
    points = score.argmin(0).tolist()
    return Choice(sweep, how, points, [_open_ends(sweep, point) for point in points])


def _open_ends(sweep: Sweep, point: int) -> list[str]:
    return [
        name
        for name, value in sweep.rates[point].items()
        if value in (min(r[name] for r in sweep.rates), max(r[name] for r in sweep.rates))
    ]
