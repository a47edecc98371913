"""Schedules of the rates: pure functions of the update number, in pure Python.

Warm-up `t / W` for the first W updates, then p = (t - W) / (T - W) in [0, 1] through a shape that falls from 1 to
`min_ratio` (docs/algorithm.md, (24) to (29)). Each branch has its own kind, steps, warm-up and minimum; a standard
scheduler gets one as `LambdaLR(optimizer, lambda epoch: factor(epoch + 1, ...))`, since it counts from 0.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType


def _cosine(p: float) -> float:
    return (1.0 + math.cos(math.pi * p)) / 2.0


#: (p, alpha) -> share of the peak. `logcosine` is a cosine in q = ln(1 + alpha p) / ln(1 + alpha): it falls the
#: earlier, the larger alpha is [our reading].
KINDS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "linear": lambda p, alpha: 1.0 - p,
        "cosine": lambda p, alpha: _cosine(p),
        "logcosine": lambda p, alpha: _cosine(math.log1p(alpha * p) / math.log1p(alpha)),
        "constant": lambda p, alpha: 1.0,
    }
)


def factor(
    t: int, *, kind: str, total_steps: int, warmup_steps: int = 0, min_ratio: float = 0.0, alpha: float = 3.0
) -> float:
    """What the peak rate is multiplied by at update `t` = 1, 2, ...; after `total_steps` it stays where it ended.

    Raises ValueError for an unknown kind, t < 1, a warm-up longer than the schedule, min_ratio outside [0, 1] or
    alpha <= 0.
    """
    _check(t, kind=kind, total_steps=total_steps, warmup_steps=warmup_steps, min_ratio=min_ratio, alpha=alpha)
    if t <= warmup_steps:
        return t / warmup_steps
    p = (t - warmup_steps) / (total_steps - warmup_steps) if t < total_steps else 1.0
    return min_ratio + (1.0 - min_ratio) * KINDS[kind](p, alpha)


def _check(t: int, *, kind: str, total_steps: int, warmup_steps: int, min_ratio: float, alpha: float) -> None:
    if kind not in KINDS:
        raise ValueError(f"schedule = {kind!r}: give one of {', '.join(KINDS)}")
    if t < 1:
        raise ValueError(f"t = {t}: updates are counted from 1")
    if not 0 <= warmup_steps <= total_steps or total_steps < 1:
        raise ValueError(f"warmup_steps = {warmup_steps}, total_steps = {total_steps}: need 0 <= warm-up <= total >= 1")
    if not 0.0 <= min_ratio <= 1.0:
        raise ValueError(f"min_ratio = {min_ratio}: give a number in [0, 1]")
    if not alpha > 0.0:
        raise ValueError(f"alpha = {alpha}: give a number above 0; small values approach a plain cosine")
