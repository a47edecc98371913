"""Results and values as tables write them."""

from mpadam.analysis.cells import Cell
from mpadam.analysis.statistics import Estimate, mean_gain


def perplexity_text(cell: Cell | None) -> str:
    """`27.31 ± 0.42 (n=2)`, `27.31 (n=1 of 2)`, `div. (1 of 2)`, `missing (0 of 2)`, or nothing where none is asked."""
    if cell is None:
        return ""
    if cell.diverged:
        return f"div. ({len(cell.diverged)} of {cell.asked})"
    refused = f", {len(cell.refused)} refused" if cell.refused else ""
    if cell.perplexity is None:
        return f"missing (0 of {cell.asked}{refused})"
    found = cell.perplexity
    spread = "" if found.sd is None else f" ± {found.sd:.2f}"
    asked = f" of {cell.asked}" if found.n < cell.asked else ""
    return f"{found.mean:.2f}{spread} (n={found.n}{asked}{refused})"


def gain_text(cell: Cell | None) -> str:
    """`+3.2%`, with the number of pairs where it is smaller than the number of runs; a dash where there is none."""
    if cell is None:
        return ""
    if cell.gain is None:
        return "div." if cell.gain_diverged else "–"
    return _percent_text(cell.gain, cell.asked)


def between_text(baseline: Cell | None, other: Cell | None) -> str:
    """The gain of one cell over another at the seeds that both have: `div.` where a run diverged, a dash where none
    pair up."""
    if baseline is None or other is None:
        return ""
    if baseline.diverged or other.diverged:
        return "div."
    gain = mean_gain(baseline.completed, other.completed)
    return _percent_text(gain, other.asked) if gain else "–"


def _percent_text(gain: Estimate, asked: int) -> str:
    return f"{100 * gain.mean:+.1f}%" + (f" (n={gain.n})" if gain.n < asked else "")


def number_text(value: float | None) -> str:
    """Short and exact enough to type again: 8e-5, 1.6e-4, 0.003, none."""
    if value is None:
        return "none"
    text = f"{value:.6g}"
    if 0 < abs(value) < 1e-3 and "e" not in text:
        mantissa, exponent = f"{value:.5e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    return text.replace("e-0", "e-")
