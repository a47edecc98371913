"""Statistics of a verdict: paired t, Holm, a variance pooled over cells, and how many seeds would decide.

Every p-value is two-sided: half for each direction, so that a family has at most `alpha` of wrong verdicts, whichever
way they point. No bootstrap: at the numbers of seeds used here it does not hold its level. Student's t assumes
differences that are about normal; the sign-flip test, reported next to it, assumes that they are symmetric.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrc, betaincinv, nctdtr, ndtri, stdtr, stdtrit

#: most seeds that a power calculation looks at
MOST_SEEDS = 1000
POWER = 0.8
#: most numbers whose signs are flipped in all 2^n ways
MOST_FLIPS = 20


@dataclass(frozen=True)
class Spread:
    """Mean of `n` numbers, their standard deviation, and the degrees of freedom that it was estimated with."""

    n: int
    mean: float
    sd: float
    df: int

    @property
    def error(self) -> float:
        return self.sd / math.sqrt(self.n)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Student's interval for the mean."""
        half = float(stdtrit(self.df, 0.5 + confidence / 2)) * self.error
        return self.mean - half, self.mean + half

    def p_above(self, threshold: float) -> float:
        """One-sided p-value of "the mean is at most `threshold`": small where it is above."""
        distance = self.mean - threshold
        if self.error == 0:
            return 0.5 if distance == 0 else float(distance < 0)
        return float(stdtr(self.df, -distance / self.error))

    def p_below(self, threshold: float) -> float:
        """The same of "the mean is at least `threshold`"."""
        return 1 - self.p_above(threshold)


@dataclass(frozen=True)
class Flips:
    """The exact sign-flip test: were the numbers symmetric around the threshold, each of the 2^n ways to flip the signs
    of their distances to it would be equally likely."""

    values: tuple[float, ...]

    @property
    def least(self) -> float:
        """The smallest two-sided p-value that so many numbers can have: 0.0625 for five, 0.03125 for six."""
        return 2.0 ** (1 - len(self.values))

    def p_above(self, threshold: float) -> float:
        """The share of all ways whose sum is at least the one seen."""
        return self._share([value - threshold for value in self.values])

    def p_below(self, threshold: float) -> float:
        """The share of all ways whose sum is at most the one seen."""
        return self._share([threshold - value for value in self.values])

    @staticmethod
    def _share(distances: Sequence[float]) -> float:
        sums = np.zeros(1)
        for distance in distances:
            sums = np.concatenate([sums + distance, sums - distance])
        slack = 1e-12 * math.fsum(map(abs, distances))  # sums that are equal but for rounding
        return float(np.mean(sums >= math.fsum(distances) - slack))


@dataclass(frozen=True)
class Share:
    """`k` of `n` probes: a binomial share. Every step may have lowered the loss, and Student's interval of as many ones
    has no width; that of a share knows how few probes there were."""

    k: int
    n: int

    @property
    def mean(self) -> float:
        return self.k / self.n

    def interval(self, confidence: float) -> tuple[float, float]:
        """Clopper and Pearson's."""
        tail = (1 - confidence) / 2
        low = 0.0 if self.k == 0 else float(betaincinv(self.k, self.n - self.k + 1, tail))
        return low, 1.0 if self.k == self.n else float(betaincinv(self.k + 1, self.n - self.k, 1 - tail))

    def p_above(self, threshold: float) -> float:
        """The exact tail of at least so many, were the share `threshold`."""
        return 1.0 if self.k == 0 else float(bdtrc(self.k - 1, self.n, threshold))

    def p_below(self, threshold: float) -> float:
        """The exact tail of at most so many."""
        return float(bdtr(self.k, self.n, threshold))

    def probes_needed(self, threshold: float, alpha: float) -> int | None:
        """Probes that would show a share above `threshold`, were it 1 as seen; None where it was not."""
        return math.ceil(math.log(alpha / 2) / math.log(threshold)) if self.k == self.n and 0 < threshold < 1 else None


def p_value(ruler: Spread | Flips | Share, mean: float, direction: str, threshold: float) -> float:
    """Two-sided p-value of a threshold; with margins on both sides, of two one-sided tests: inside if both say so,
    outside if one does."""
    if direction in ("above", "below"):
        return min(1.0, 2 * min(ruler.p_above(threshold), ruler.p_below(threshold)))
    if abs(mean) < threshold:
        return min(1.0, 2 * max(ruler.p_above(-threshold), ruler.p_below(threshold)))
    return min(1.0, 2 * min(ruler.p_below(-threshold), ruler.p_above(threshold)))


def flips(values: Sequence[float]) -> Flips | None:
    """None for more numbers than can be flipped in all ways."""
    return Flips(tuple(values)) if len(values) <= MOST_FLIPS else None


def spread(values: Sequence[float]) -> Spread:
    """Of at least two numbers, with the variance of their own."""
    assert len(values) >= 2
    array = np.asarray(values, dtype=float)
    return Spread(len(array), float(array.mean()), float(array.std(ddof=1)), len(array) - 1)


def pool(spreads: Sequence[Spread]) -> list[Spread]:
    """The same means with one standard deviation: the largest of the cells, with the degrees of freedom of all.

    With the mean variance in its place, the textbook's way, two or three cells that scatter twice as much as the others
    double the share of wrong verdicts, and seeds that the cells have in common raise it too; with the largest one it
    stays below `alpha` (by simulation, up to a factor of two between the cells), at a fraction of the seeds.
    """
    df = sum(one.df for one in spreads)
    sd = max((one.sd for one in spreads), default=0.0)
    return [Spread(one.n, one.mean, sd, df) for one in spreads]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def seeds_needed(distance: float, sd: float, alpha: float) -> int | None:
    """Paired seeds at which a two-sided t test at level `alpha` sees `distance` with a power of 80%, at least 3.

    distance: from the threshold, taken as true; so is `sd`. None where more than MOST_SEEDS would be needed.
    """
    if sd == 0 or distance == 0:
        return None if distance == 0 else 3

    def enough(n: int) -> bool:
        miss = float(nctdtr(n - 1, abs(distance) / sd * math.sqrt(n), stdtrit(n - 1, 1 - alpha / 2)))
        return math.isnan(miss) or 1 - miss >= POWER  # scipy has no value where the distance is beyond doubt

    fewest = ((float(ndtri(1 - alpha / 2)) + float(ndtri(POWER))) * sd / distance) ** 2  # were the deviation known
    return next((n for n in range(max(3, int(min(fewest, MOST_SEEDS + 1))), MOST_SEEDS + 1) if enough(n)), None)
