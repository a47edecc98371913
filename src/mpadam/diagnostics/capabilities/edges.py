"""Where along |w| updates begin to be lost: a scan, then bisection at the two places where it changes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SCANNED_A_BINADE = 4
BISECTIONS = 10  # of an interval of a quarter of a binade: to 0.02%, finer than any format


@dataclass(frozen=True)
class Edges:
    """Updates move weights between `below` and `above`; None: they still do at that end of the range.

    everywhere: they move none, and there are no edges.  gaps: share of the scanned |w| between the edges where they do
    not: a step proportional to |w| may do for the fine half of a binade only.
    """

    below: float | None = None
    above: float | None = None
    everywhere: bool = False
    gaps: float = 0.0


def find_edges(moves: Callable[[Tensor], Tensor], low: float, high: float) -> Edges:
    """moves: |w| of shape (n,), float32 -> for each whether it moves, (n,) bool."""
    count = 2 + int(SCANNED_A_BINADE * torch.log2(torch.tensor(high / low)).item())
    grid = torch.logspace(torch.log2(torch.tensor(low)).item(), torch.log2(torch.tensor(high)).item(), count, base=2.0)
    alive = moves(grid)
    if not alive.any():
        return Edges(everywhere=True)
    found = alive.nonzero().flatten()
    first, last = int(found[0]), int(found[-1])
    gaps = 1.0 - alive[first : last + 1].double().mean().item()
    below = None if first == 0 else _bisect(moves, lost=grid[first - 1], alive=grid[first])
    above = None if last == count - 1 else _bisect(moves, lost=grid[last + 1], alive=grid[last])
    return Edges(below, above, gaps=gaps)


def _bisect(moves: Callable[[Tensor], Tensor], *, lost: Tensor, alive: Tensor) -> float:
    """The |w| between two where it changes, halving the interval on a logarithmic scale."""
    for _ in range(BISECTIONS):
        middle = (lost * alive).sqrt()
        if moves(middle[None]).item():
            alive = middle
        else:
            lost = middle
    return (lost * alive).sqrt().item()
