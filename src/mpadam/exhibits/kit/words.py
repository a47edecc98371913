"""Phrases that captions and alternative texts share."""

from collections.abc import Iterable

from mpadam.analysis.cells import Cell


def counts_text(counts: Iterable[int], none: str) -> str:
    """`n = 2`, or `n = 1 to 3`; `none` where nothing is counted."""
    found = sorted(set(counts))
    if not found:
        return none
    return f"n = {found[0]}" + (f" to {found[-1]}" if len(found) > 1 else "")


def seeds_text(cells: Iterable[Cell]) -> str:
    """How many seeds the means of these cells are over."""
    return counts_text((cell.perplexity.n for cell in cells if cell.perplexity), "no completed cell")


def lost_text(cells: Iterable[Cell]) -> str:
    """` Of 16 cells, 1 with a diverged run have a cross and no mean.`; empty where all have a mean."""
    found = list(cells)
    diverged = sum(bool(cell.diverged) for cell in found)
    missing = sum(not cell.completed and not cell.diverged for cell in found)
    lost = [f"{diverged} with a diverged run have a cross and no mean"] if diverged else []
    lost += [f"{missing} have no result yet"] if missing else []
    return f" Of {len(found)} cells, {' and '.join(lost)}." if lost else ""
